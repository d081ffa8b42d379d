"""The client: attempts, extreme parameters, and keys that are gone."""

from contextlib import suppress

import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.dp_fedpaq.messages import FAILED, REFUSED
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.mechanisms.rng import Randomness
from strategies.niss import client as niss_client
from strategies.niss.key_memory import KeyMemory
from strategies.niss.messages import READY, REGISTER, UPLOAD
from strategies.niss.peers import pack_ready_set
from tests.niss.clients import KINDS, code_of, make_server
from tests.niss.hostile_server import (
    Device,
)


def keys_of(device: Device) -> KeyMemory:
    return KeyMemory(device.state, Randomness("secret", 0), device.number)


def test_the_client_is_told_by_its_node_who_it_is() -> None:
    server = make_server()
    context = Context(1, 99, {}, RecordDict(), {})
    reply = niss_client.train(
        server.request(REGISTER, 1, 1),
        context,
        num_records=20,
        local_update=server.devices[0].learn,
    )
    assert int.from_bytes(reply.content["config"]["card"][:8], "big") == 99


def test_a_client_uploads_in_the_attempt_that_it_is_ready_for() -> None:
    server = make_server()
    server.begin(2, 2)
    for asked in ((2, 1), (2, 3), (1, 2), (3, 2)):
        reply = server.ask_upload(0, server_round=asked[0], attempt=asked[1])
        assert code_of(reply) == REFUSED
    assert server.devices[0].entry.participations == 0
    assert not server.ask_upload(0, server_round=2, attempt=2).has_error()


EXTREME = [1e-300, 1e-30, 1e-9, 0.5, 1.0, 1e9, 9e14]


MANY = [2, 3, 1000, 2**31, 2**63]


@settings(max_examples=60)
@given(
    st.sampled_from(EXTREME),
    st.sampled_from(EXTREME),
    st.sampled_from([*EXTREME[:3], 1e-5, None]),
    st.sampled_from(MANY),
    st.sampled_from(MANY),
    st.sampled_from([1, 1000, 2**31 - 1]),
    st.sampled_from([-1000, -500, -30, 0, 49, 1000]),
    st.sampled_from([0, 1, 1000, 2**31 - 1]),
    st.sampled_from(["gaussian", "uniform"]),
)
def test_extreme_parameters_are_refused_or_obeyed(
    clipping: float,
    noise: float,
    epsilon: float | None,
    ready: int,
    participations: int,
    server_round: int,
    exponent: int,
    scale: int,
    pair_noise: str,
) -> None:
    """By a client that believes its server: nothing raises, and no upload is left uncharged."""
    try:
        server = make_server(
            3,
            10,
            pair_noise=pair_noise,
            clipping_norm=clipping,
            noise_multiplier=noise if epsilon is None else None,
            target_epsilon=epsilon,
            base_noise_multiplier=noise,
            min_ready=2,
            max_ready=max(3, ready),
            num_clients=max(3, ready),
            num_participations=participations,
            lr_schedule="exponential",
            lr_decay=0.5,
        )
    except ParameterError:
        return
    server.register()
    for number, each in server.devices.items():
        assert code_of(each.answer(server.request(READY, server_round, 1))) is None
        # Whoever sits out, for want of a grid, is asked for an upload all the same.
        server.nonces[number] = keys_of(each).begin(server_round, 1)
    device = server.devices[0]
    scales: list[dict[str, int]] = [{"step_exponent": exponent, "pair_scale": scale}]
    with suppress(ValueError, ArithmeticError):
        scales.append(server.scale(server_round=server_round))
    for fields in scales:
        charged = device.entry.participations
        request = server.request(
            UPLOAD, server_round, 1, ready_set=pack_ready_set(server.ready_set(0)), **fields
        )
        reply = device.answer(request)
        assert code_of(reply) in (None, REFUSED, FAILED)
        if not reply.has_error() and "arrays" in reply.content:
            assert device.entry.participations == charged + 1


def test_after_its_last_upload_no_noise_can_be_derived_again() -> None:
    server = make_server(num_participations=1)
    server.begin()
    device = server.devices[0]
    first = server.ask_upload(0)
    assert first is not None
    assert device.entry.participations == 1
    assert device.state.read_key("niss.exchange") is None
    assert device.state.read_key("niss.pending") is None
    again = server.ask_upload(0)
    assert again is not None
    assert again.content["arrays"]["update"].data == first.content["arrays"]["update"].data


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_whose_keys_are_gone_does_not_register_again(kind: str) -> None:
    """With new keys and nobody pinned, a server could name it peers of its own making."""
    server = make_server(randomness=kind)
    device = server.devices[0]
    server.begin()
    assert not server.ask_upload(0).has_error()
    assert device.entry.last_round == 1
    # Registering again is no harm as long as the keys are those of before.
    card = device.answer(server.request(REGISTER, 1, 1))
    keys_of(device).forget_private()
    again = device.answer(server.request(REGISTER, 2, 1))
    if kind == "secret":
        assert code_of(again) == REFUSED
        assert keys_of(device).has_forgotten()
    else:
        # Seeded keys are functions of the seed: the same ones again.
        assert again.content["config"]["card"] == card.content["config"]["card"]
