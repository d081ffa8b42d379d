"""A device's key and trust list, from the files that its node configuration names."""

import json
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from flwr.app import Context, Message

from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.device_trust import IDENTITY_KEY, TRUSTED_KEY, read_device_trust
from fl_app.engines.in_process import run_in_process
from fl_app.errors import ConfigError, RunError
from fl_app.server_app import app as server_app
from strategies.mechanisms.key_agreement import public_identity
from strategies.niss.key_memory import NOBODY_KNOWN
from tests.conftest import Outcome, read_outcome

PRIVATE = [bytes([number + 1]) * 32 for number in range(6)]
PUBLIC = [public_identity(each) for each in PRIVATE]


def write(file: Path, text: str, mode: int = 0o600) -> str:
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    return str(file)


@pytest.fixture
def identity(tmp_path: Path) -> str:
    return write(tmp_path / "identity", PRIVATE[0].hex() + "\n")


@pytest.fixture
def trusted(tmp_path: Path) -> str:
    lines = ["# the owner's devices", "", *(each.hex() for each in PUBLIC[:3])]
    return write(tmp_path / "trusted", "\n".join([*lines[:-1], lines[-1] + "  # the phone"]))


def test_no_files_nobody_known() -> None:
    assert read_device_trust({}) is NOBODY_KNOWN


@pytest.mark.parametrize("key", [IDENTITY_KEY, TRUSTED_KEY])
@pytest.mark.parametrize("value", ["", False, 0, 7, None])
def test_a_key_that_names_no_file_does_not_mean_nobody(
    identity: str, trusted: str, key: str, value: object
) -> None:
    """As of a variable that is not set: the owner named a list, and there is none."""
    config = {IDENTITY_KEY: identity, TRUSTED_KEY: trusted, key: value}
    with pytest.raises(ConfigError, match=f"{key}: .*; allowed: a file's path, or no such key"):
        read_device_trust(config)


def test_key_and_list(identity: str, trusted: str) -> None:
    found = read_device_trust({IDENTITY_KEY: identity, TRUSTED_KEY: trusted})
    assert (found.identity, found.peers) == (PRIVATE[0], frozenset(PUBLIC[:3]))
    assert PRIVATE[0].hex() not in repr(found)
    assert "identity" not in repr(found)
    alone = read_device_trust({IDENTITY_KEY: identity})
    assert (alone.identity, alone.peers) == (PRIVATE[0], None)
    assert alone.digest(PUBLIC[0]) == b""


def test_lists_of_the_same_devices_are_one_whether_a_device_lists_itself(
    identity: str, trusted: str, tmp_path: Path
) -> None:
    without = write(tmp_path / "without", "\n".join(each.hex() for each in PUBLIC[2:0:-1]))
    digests = {
        read_device_trust({IDENTITY_KEY: identity, TRUSTED_KEY: file}).digest(PUBLIC[0])
        for file in (trusted, without)
    }
    assert len(digests) == 1
    other = write(tmp_path / "other", PUBLIC[1].hex())
    found = read_device_trust({IDENTITY_KEY: identity, TRUSTED_KEY: other})
    assert found.digest(PUBLIC[0]) not in digests


BAD = {
    "empty": "",
    "comments": "# nothing\n",
    "short": "ab" * 31,
    "long": "ab" * 33,
    "no hexadecimal": "zz" * 32,
    "odd": "a" * 63,
    "two in a line": "ab" * 32 + " " + "cd" * 32,
    "one that is bad": "ab" * 32 + "\n" + "ab",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("name", [IDENTITY_KEY, TRUSTED_KEY])
def test_a_file_that_is_none_is_named_and_not_quoted(
    identity: str, tmp_path: Path, name: str, text: str
) -> None:
    file = write(tmp_path / "bad", text)
    with pytest.raises(ConfigError) as refused:
        read_device_trust({IDENTITY_KEY: identity, name: file})
    assert (refused.value.key, refused.value.value) == (name, file)
    assert "64 hexadecimal digits" in str(refused.value)
    assert not text.strip() or text.strip()[:20] not in str(refused.value)


@pytest.mark.parametrize("name", [IDENTITY_KEY, TRUSTED_KEY])
@pytest.mark.parametrize("missing", ["nowhere", "."])
def test_a_file_that_cannot_be_read_is_named(
    identity: str, tmp_path: Path, name: str, missing: str
) -> None:
    file = str(tmp_path / missing)
    with pytest.raises(ConfigError) as refused:
        read_device_trust({IDENTITY_KEY: identity, name: file})
    assert (refused.value.key, refused.value.value) == (name, file)


def test_bytes_that_are_no_text(identity: str, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(bytes(range(128, 192)))
    with pytest.raises(ConfigError, match=TRUSTED_KEY):
        read_device_trust({IDENTITY_KEY: identity, TRUSTED_KEY: str(file)})


def test_one_key_of_its_own(tmp_path: Path) -> None:
    file = write(tmp_path / "two", "\n".join(each.hex() for each in PRIVATE[:2]))
    with pytest.raises(ConfigError, match="a file with one key"):
        read_device_trust({IDENTITY_KEY: file})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601])
def test_a_private_key_that_others_may_use_is_refused(identity: str, mode: int) -> None:
    Path(identity).chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_device_trust({IDENTITY_KEY: identity})


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_key_that_its_owner_alone_may_use(identity: str, mode: int) -> None:
    Path(identity).chmod(mode)
    assert stat.S_IMODE(Path(identity).stat().st_mode) == mode
    assert read_device_trust({IDENTITY_KEY: identity}).identity == PRIVATE[0]


def test_everybody_may_read_a_list(identity: str, trusted: str) -> None:
    Path(trusted).chmod(0o644)
    assert read_device_trust({IDENTITY_KEY: identity, TRUSTED_KEY: trusted}).peers


def test_a_list_without_a_key_of_one_s_own(trusted: str) -> None:
    with pytest.raises(ConfigError, match=IDENTITY_KEY):
        read_device_trust({TRUSTED_KEY: trusted})


def run_with(
    folder: Path, node_config: Callable[[int], dict[str, str]], *overrides: str
) -> Outcome:
    """Run on devices whose node configurations name files."""

    def answer(message: Message, context: Context) -> Message:
        context.node_config.update(node_config(int(context.node_config["partition-id"])))
        return client_app(message, context)

    settings = compose_settings(
        ["strategy=niss", "num_rounds=2", "num_clients=6", "randomness=secret", *overrides]
    )
    run_config = {"settings": settings.to_json(), "output-dir": str(folder / "run")}
    run_in_process(server_app, answer, 6, run_config)  # type: ignore[arg-type]
    return read_outcome(folder / "run")


def arrange(folder: Path, lists: Mapping[int, Iterable[int]]) -> Callable[[int], dict[str, str]]:
    """Write the files of six devices; `lists` says whom each trusts."""
    for number, members in lists.items():
        write(folder / f"identity{number}", PRIVATE[number].hex())
        write(folder / f"trusted{number}", "\n".join(PUBLIC[each].hex() for each in members))

    def node_config(number: int) -> dict[str, str]:
        if number not in lists:
            return {}
        names = {IDENTITY_KEY: f"identity{number}", TRUSTED_KEY: f"trusted{number}"}
        return {key: str(folder / name) for key, name in names.items()}

    return node_config


def test_a_run_of_devices_that_know_each_other_is_valid_with_colluders(tmp_path: Path) -> None:
    devices = arrange(tmp_path, {each: range(6) for each in range(6)})
    outcome = run_with(tmp_path, devices, "strategy.colluding_fraction=0.4")
    assert [row["valid"] for row in outcome.guarantees] == [True] * 3
    assert [row["why_not"] for row in outcome.guarantees] == [None] * 3
    text = json.dumps(outcome.guarantees)
    assert "trust lists: each client's list holds the identity keys of real devices" in text
    assert "trust on first use" not in text
    assert [row["num_replies"] for row in outcome.rows[1:]] == [6, 6]
    for key in (*PRIVATE, *PUBLIC):
        assert key.hex() not in "".join(path.read_text() for path in outcome.folder.glob("*.json*"))


def test_two_owners_devices_mask_among_their_own(tmp_path: Path) -> None:
    lists = {number: {0, 1, 2} if number < 3 else {3, 4, 5} for number in range(6)}
    outcome = run_with(tmp_path, arrange(tmp_path, lists), "strategy.min_ready=3")
    assert outcome.guarantees[0]["valid"]
    assert [row["num_replies"] for row in outcome.rows[1:]] == [6, 6]


def test_one_device_without_a_list_and_no_colluding_fraction_holds(tmp_path: Path) -> None:
    devices = arrange(tmp_path, {each: range(5) for each in range(5)})
    outcome = run_with(tmp_path, devices, "strategy.min_ready=5")
    assert [row["valid"] for row in outcome.guarantees] == [False, True, True]
    assert "not every client has one (trusted-peers)" in outcome.guarantees[0]["why_not"]
    # The five who know each other uploaded; nobody else has enough to hide among.
    assert [row["num_replies"] for row in outcome.rows[1:]] == [5, 5]


def test_a_device_whose_key_others_may_read_answers_nothing(tmp_path: Path) -> None:
    devices = arrange(tmp_path, {each: range(6) for each in range(6)})
    (tmp_path / "identity2").chmod(0o644)
    outcome = run_with(tmp_path, devices, "strategy.min_ready=4")
    assert [(row["num_replies"], row["num_failures"]) for row in outcome.rows[1:]] == [(5, 1)] * 2
    for number in range(6):
        (tmp_path / f"identity{number}").chmod(0o604)
    (tmp_path / "again").mkdir()
    with pytest.raises(RunError):
        run_with(tmp_path / "again", devices)
