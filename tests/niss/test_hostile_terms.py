"""A server that tells clients other parameters, grids, scales, rounds and models."""

import math
import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from strategies.mechanisms.fixed_point import FixedPoint
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss.calibration import calibrate, own_noise_multiplier
from strategies.niss.circles import Coalition
from strategies.niss.key_memory import DeviceTrust
from strategies.niss.messages import REGISTER
from strategies.niss.noise_plan import accept_scale, plan_noise
from tests.niss.hostile_rounds import MEMBERS, SIZE, assert_uncharged, is_refused, make_server
from tests.niss.hostile_server import (
    HostileServer,
    Wiretap,
    make_parameters,
    make_sybil,
)
from tests.niss.judge import assert_hidden, judge

OTHERS: dict[str, dict[str, object]] = {
    "rho": {"colluding_fraction": 0.3},
    "min_ready": {"min_ready": 3},
    "max_ready": {"max_ready": 9, "num_clients": 9},
    "num_participations": {"num_participations": 7},
    "base noise": {"base_noise_multiplier": 0.05},
    "noise": {"noise_multiplier": 0.1, "base_noise_multiplier": 0.1},
    "clipping": {"clipping_norm": 0.01},
    "dropouts": {"expected_dropouts": 1},
    "coalitions": {"coalitions": (Coalition((0, 1, 2, 3, 4, 5), 0.0, 6),)},
}


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
@pytest.mark.parametrize("name", OTHERS)
def test_clients_that_were_told_other_parameters_do_not_give_the_target_away(
    wiretap: Wiretap, name: str, pair_noise: str
) -> None:
    """Half of the clients agree to other parameters; cards of theirs are refused, or worthless."""
    changes = {"pair_noise": pair_noise, **OTHERS[name]}
    if pair_noise == "uniform" and name == "dropouts":
        changes["graph"] = "sparse"
        del changes["expected_dropouts"]
    server = make_server(pair_noise=pair_noise)
    other = make_parameters(MEMBERS, **changes)
    assert server.parameters != other
    liars = HostileServer([server.devices[n] for n in (1, 2)], other, size=SIZE)
    true = HostileServer([server.devices[n] for n in (0, 3, 4, 5)], server.parameters, size=SIZE)
    for each in (liars, true):
        each.begin()
        server.cards |= each.cards
        server.nonces |= each.nonces
    # The cards are signed for other parameters.
    assert is_refused(server.ask_upload(0))
    assert_uncharged(server.devices[0])
    # Without trust lists the server may put its own Sybils in their place, so that all upload.
    sybils = [make_sybil(1), make_sybil(2)]
    named = [each.peer(server.run_tag()) for each in sybils]
    assert not server.ask_upload(0, [*named, *server.ready_set(0, (0, 3, 4, 5))]).has_error()
    (upload,) = wiretap.uploads
    assert set(upload.binding) >= {"run_tag", "server_round", "attempt"}
    assert upload.binding["run_tag"] != server.run_tag(other)


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
def test_a_registered_client_is_not_told_other_parameters(pair_noise: str) -> None:
    server = make_server(pair_noise=pair_noise)
    server.begin()
    device = server.devices[0]
    for name, changes in OTHERS.items():
        if pair_noise == "uniform" and name == "dropouts":
            continue
        other = make_parameters(MEMBERS, pair_noise=pair_noise, **changes)
        for phase in (REGISTER, "ready"):
            assert is_refused(device.answer(server.request(phase, 1, 1, other)))
        assert is_refused(server.ask_upload(0, parameters=other, **server.scale(server.parameters)))
    assert_uncharged(device)


def test_another_grid_or_scale_is_refused_or_hides_no_less(wiretap: Wiretap) -> None:
    server = make_server()
    server.begin()
    scale = server.scale()
    exponent, pair_scale = scale["step_exponent"], scale["pair_scale"]
    for changed in (
        *({"pair_scale": each} for each in (0, 1, pair_scale - 1, pair_scale + 2, 2**31 - 1)),
        *({"pair_scale": each} for each in (-1, -pair_scale, 2 * pair_scale, 2**40, 2**62)),
        *({"step_exponent": exponent + each} for each in (-2, 2, 10, 40, -10, -40)),
        *({"step_exponent": each} for each in (-1074, -1000, -501, -500, 49, 50, 1023, 1024)),
        *({"step_exponent": each} for each in (2**31 - 1, 2**62, -(2**62))),
        {"step_exponent": -1000, "pair_scale": 2**31 - 1},
    ):
        assert is_refused(server.ask_upload(0, **changed)), changed
    assert_uncharged(server.devices[0])
    assert wiretap.uploads == []


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
@pytest.mark.parametrize("off", [-60, -20, -3, -2, 2, 3, 8, 20, 60])
def test_a_grid_far_from_the_clients_own_is_refused(
    wiretap: Wiretap, pair_noise: str, off: int
) -> None:
    """With the scale that goes with it. On a finer one, whether an update fits depends on it."""
    server = make_server(pair_noise=pair_noise)
    server.begin()
    exponent = server.scale()["step_exponent"] + off
    chosen = server.parameters
    calibrated = calibrate(chosen, chosen.circle_of(0), 1.0)
    scales = {0, 1, calibrated.pair_multiple(2.0**exponent)}
    with suppress(ParameterError):
        plan = plan_noise(chosen, chosen.circle_of(0), 1, SIZE, FixedPoint(2.0**exponent))
        scales.add(plan.pair_scale)
    for scale in scales:
        assert is_refused(server.ask_upload(0, step_exponent=exponent, pair_scale=scale))
    assert_uncharged(server.devices[0])
    assert wiretap.uploads == []


def test_a_scale_that_own_noise_does_not_smooth_is_refused() -> None:
    """One more than the client's own is let pass where own noise smooths it."""
    few, many = make_parameters(10), make_parameters(2000)
    for parameters, smooth in ((few, True), (many, False)):
        circle = parameters.circle_of(0)
        coarse = []
        for exponent in range(-30, 0):
            with suppress(ParameterError):
                plan = plan_noise(parameters, circle, 1, 100, FixedPoint(2.0**exponent))
                coarse += [plan] if plan.pair_scale == 1 else []
        most = parameters.max_ready
        assert accept_scale(coarse[0], 1, max_ready=most) == coarse[0]
        if smooth:
            assert accept_scale(coarse[0], 2, max_ready=most).pair_std == 2 * coarse[0].pair_std
        else:
            with pytest.raises(ParameterError, match="does not smooth"):
                accept_scale(coarse[0], 2, max_ready=most)


@pytest.mark.parametrize("pair_noise", ["gaussian", "uniform"])
@pytest.mark.parametrize("finer", ["the target's", "the others'"])
def test_clients_on_different_grids_hide_each_other_no_less(
    wiretap: Wiretap, pair_noise: str, finer: str
) -> None:
    """The same numbers on a coarser grid, of peers, would be known too well on the finer one."""
    server = make_server(pair_noise=pair_noise)
    server.begin()
    own = server.scale()["step_exponent"]
    steps = (own - 1, own + 1) if finer == "the target's" else (own + 1, own - 1)
    for number in server.devices:
        step = steps[number > 0]
        grid = FixedPoint(2.0**step)
        parameters = server.parameters
        plan = plan_noise(parameters, parameters.circle_of(0), 1, SIZE, grid)
        reply = server.ask_upload(number, step_exponent=step, pair_scale=plan.pair_scale)
        assert not reply.has_error()
    result = judge(wiretap, server)
    if pair_noise == "uniform":
        assert result is None
    else:
        assert_hidden(result)


def test_peers_with_a_larger_pair_scale_hide_the_target_no_less(wiretap: Wiretap) -> None:
    """Small scales, where one more is much: a clipping norm far above the noise."""
    server = make_server(noise_multiplier=0.02, base_noise_multiplier=0.02)
    server.begin()
    scale = server.scale()
    for number in server.devices:
        more = int(number > 0)
        reply = server.ask_upload(number, pair_scale=scale["pair_scale"] + more)
        assert not reply.has_error()
    assert_hidden(judge(wiretap, server))


def test_a_shorter_model_for_the_others_hides_the_target_no_less(wiretap: Wiretap) -> None:
    """A longer one has more noise, as rounding is worth more in it: the peers' would be less."""
    server = make_server()
    server.begin()
    for number in server.devices:
        model = np.zeros(SIZE) if number == 0 else np.zeros(100)
        assert not server.ask_upload(number, model=model).has_error()
    first = set(wiretap.uploads[0].keys)
    assert all(first.isdisjoint(each.keys) for each in wiretap.uploads[1:])


def test_nothing_is_answered_twice_and_no_round_comes_back(wiretap: Wiretap) -> None:
    server = make_server(size=50)
    server.begin(3, 2)
    first = server.ask_upload(0, server_round=3, attempt=2)
    assert not first.has_error()
    again = server.ask_upload(0, server_round=3, attempt=2)
    assert again.content["arrays"]["update"].data == first.content["arrays"]["update"].data
    device = server.devices[0]
    read = device.data_read
    old = server.ready_set(0)
    for changed in (
        {"model": np.full(50, 1e-9)},
        {"ready": old[::-1]},
        {"ready": [replace(old[0], nonce=os.urandom(16)), *old[1:]]},
        {"pair_scale": server.scale()["pair_scale"] + 1},
        {"attempt": 1},
        {"attempt": 3},
        {"server_round": 2},
        {"server_round": 4},
    ):
        given = {"server_round": 3, "attempt": 2, "ready": old, **changed}
        assert is_refused(server.ask_upload(0, given.pop("ready"), **given)), changed
    for asked in ((3, 2), (3, 1), (2, 5), (1, 1)):
        assert is_refused(device.answer(server.request("ready", *asked)))
    assert device.entry.participations == 1
    assert device.data_read == read
    assert len(wiretap.uploads) == 1


def test_an_old_ready_set_gets_fresh_noise(wiretap: Wiretap) -> None:
    """The others' nonces of the last round, again: the client's own is new, and so is each key."""
    server = make_server()
    server.begin()
    old = server.ready_set(0)
    for number in server.devices:
        server.ask_upload(number)
    server.ask_ready(2)
    assert not server.ask_upload(0, old, server_round=2).has_error()
    assert set(wiretap.uploads[0].keys).isdisjoint(wiretap.uploads[-1].keys)
    assert_hidden(judge(wiretap, server))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_not_finite_is_refused(value: float) -> None:
    server = make_server(size=50)
    server.begin()
    model = np.zeros(50)
    model[7] = value
    assert is_refused(server.ask_upload(0, model=model))
    assert_uncharged(server.devices[0])


@pytest.mark.parametrize("value", [1e308, 1e30, -1e300])
def test_a_model_of_giant_numbers_gives_nothing_away(wiretap: Wiretap, value: float) -> None:
    """Training overflows or cancels; whatever comes of it is bounded, and hidden."""
    server = make_server()
    server.begin()
    for number in server.devices:
        assert not server.ask_upload(number, model=np.full(SIZE, value)).has_error()
    assert all(np.linalg.norm(each.update) <= 1.0 + 1e-9 for each in wiretap.uploads)
    assert_hidden(judge(wiretap, server))


@pytest.mark.parametrize("size", [0, 1, 49])
def test_a_model_of_another_size_is_refused_or_trained_on(size: int) -> None:
    server = make_server(size=50)
    server.begin()
    reply = server.ask_upload(0, model=np.zeros(size))
    assert reply.has_error() == (size == 0)


@pytest.mark.parametrize("missing", [1, 16, 151, -1])
def test_a_ready_set_of_a_wrong_length_is_refused(missing: int) -> None:
    from strategies.niss.messages import UPLOAD
    from strategies.niss.peers import pack_ready_set

    server = make_server(size=50)
    server.begin()
    packed = pack_ready_set(server.ready_set(0))
    packed = packed[:-missing] if missing > 0 else packed + b"\0"
    request = server.request(UPLOAD, 1, 1, ready_set=packed, **server.scale())
    assert is_refused(server.devices[0].answer(request))
    assert_uncharged(server.devices[0])


def test_more_uploads_than_agreed_are_not_to_be_had(wiretap: Wiretap) -> None:
    """Each attempt is charged, however the server names it."""
    server = make_server(size=50)
    server.register()
    answered = 0
    for attempt in range(1, 8):
        device = server.devices[0]
        reply = device.answer(server.request("ready", 1, attempt))
        if reply.content["config"]["status"] == "ineligible":
            continue
        server.ask_ready(1, attempt) if answered < 2 else None
        if not server.nonces:
            continue
        server.nonces[0] = reply.content["config"]["nonce"]
        answered += not server.ask_upload(0, attempt=attempt).has_error()
    assert answered == 3 == device.entry.participations == len(wiretap.uploads)


def test_a_target_of_its_own_hides_a_client_by_more(wiretap: Wiretap) -> None:
    server = make_server(
        noise_multiplier=None,
        target_epsilon=8.0,
        target_delta=1e-5,
        client_epsilons=((0, 2.0),),
        base_noise_multiplier=1.0,
    )
    server.begin()
    for number in server.devices:
        server.ask_upload(number)
    base = judge(wiretap, server, 1)
    assert base is not None
    assert base.agrees()
    assert not base.breaks_promise
    strict = judge(wiretap, server, 0)
    assert strict is not None
    assert strict.agrees()
    needed = own_noise_multiplier(server.parameters, 0, 20)
    assert strict.predicted_std >= needed * strict.sigma_eff * (1 - 1e-9)


def test_nonsense_parameters_are_not_parameters() -> None:
    with pytest.raises(ParameterError):
        make_parameters(base_noise_multiplier=math.nan)
    assert DeviceTrust(None, None).digest(bytes(32)) == b""
