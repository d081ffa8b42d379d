"""Keys between messages, in the node's context and in a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fl_app.device_state import FolderState
from strategies.device_state import ContextState, DeviceState
from strategies.mechanisms.key_agreement import public_identity, sign_card
from strategies.mechanisms.rng import Randomness
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust, KeyMemory

Open = Callable[[], DeviceState]


@pytest.fixture(params=["context", "folder"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open the same memory again, as a process does that was restarted."""
    if request.param == "folder":
        return lambda: FolderState(tmp_path / "states", "run", 3, "OFF")
    context = Context(1, 7, {}, RecordDict(), {})
    return lambda: ContextState(context)


def keys_in(state: DeviceState, kind: str = "secret", client: int = 3) -> KeyMemory:
    return KeyMemory(state, Randomness(kind, 5), client)  # type: ignore[arg-type]


def test_private_keys_are_drawn_once(reopen: Open) -> None:
    keys = keys_in(reopen())
    exchange, identity = keys.exchange_key(), keys.identity_key()
    assert (len(exchange), len(identity)) == (32, 32)
    assert exchange != identity
    again = keys_in(reopen())
    assert (again.exchange_key(), again.identity_key()) == (exchange, identity)


def test_keys_of_a_seeded_run_are_functions_of_seed_and_client(tmp_path: Path) -> None:
    drawn = [
        keys_in(FolderState(tmp_path / f"{index}", "run", 0, "OFF"), kind, client).exchange_key()
        for index, (kind, client) in enumerate(
            [("seeded", 3), ("seeded", 3), ("seeded", 4), ("secret", 3), ("secret", 3)]
        )
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 4


def test_the_first_tag_is_the_runs(reopen: Open) -> None:
    keys = keys_in(reopen())
    assert not keys.has_agreed_on(b"a" * 16)
    assert keys.agree_on_tag(b"a" * 16)
    again = keys_in(reopen())
    assert again.has_agreed_on(b"a" * 16)
    assert again.agree_on_tag(b"a" * 16)
    assert not again.agree_on_tag(b"b" * 16)
    assert not again.has_agreed_on(b"b" * 16)


def test_the_first_card_of_a_number_is_kept(reopen: Open) -> None:
    cards = [sign_card(number, b"run", bytes([number]) * 32, b"x" * 32) for number in (1, 2, 3)]
    keys = keys_in(reopen())
    assert keys.cards() == {}
    keys.pin(cards[:2])
    other = sign_card(2, b"run", b"y" * 32, b"x" * 32)
    keys.pin([other, cards[2]])
    assert keys_in(reopen()).cards() == {card.number: card for card in cards}


@pytest.mark.parametrize("kind", ["secret", "seeded"])
def test_a_nonce_is_given_up_before_it_is_used(reopen: Open, kind: str) -> None:
    keys = keys_in(reopen(), kind)
    assert keys.pending() is None
    nonce = keys.begin(4, 2)
    assert len(nonce) == 16
    assert keys_in(reopen(), kind).begin(4, 2) == nonce
    assert keys_in(reopen(), kind).pending() == (4, 2, nonce)
    keys.use_up()
    again = keys_in(reopen(), kind)
    assert again.pending() is None
    assert (again.begin(4, 2) == nonce) == (kind == "seeded")
    assert again.begin(4, 3) != nonce
    assert again.begin(5, 2) != nonce


def test_the_largest_round_fits(reopen: Open) -> None:
    keys = keys_in(reopen())
    nonce = keys.begin(2**31 - 1, 2**31 - 1)
    assert keys.pending() == (2**31 - 1, 2**31 - 1, nonce)


def test_two_clients_of_one_folder_do_not_share_keys(tmp_path: Path) -> None:
    keys = [keys_in(FolderState(tmp_path, "run", client, "OFF")) for client in (0, 1)]
    assert keys[0].exchange_key() != keys[1].exchange_key()
    keys[0].begin(1, 1)
    assert keys[1].pending() is None


def test_equal_trust_lists_have_equal_digests_wherever_they_stand() -> None:
    privates = [bytes([index]) * 32 for index in range(3)]
    a, b, c = (public_identity(each) for each in privates)
    everybody = DeviceTrust(privates[0], frozenset({a, b, c}))
    without_own = DeviceTrust(privates[1], frozenset({a, c}))
    assert everybody.digest(a) == without_own.digest(b)
    assert DeviceTrust(privates[0], frozenset({b})).digest(a) != everybody.digest(a)
    assert len(everybody.digest(a)) == 32
    # A list of nobody is a list.
    assert len(DeviceTrust(privates[0], frozenset()).digest(a)) == 32
    assert NOBODY_KNOWN.digest(a) == b""


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "a" * 32])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        DeviceTrust(key)
    with pytest.raises(ValueError, match="32 bytes"):
        DeviceTrust(bytes(32), frozenset({key}))


def test_a_private_key_is_not_printed() -> None:
    assert "0123" not in repr(DeviceTrust(b"0123" * 8))
