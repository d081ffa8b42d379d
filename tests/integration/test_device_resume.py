"""Runs on devices whose server is killed in the middle of a round, and goes on: nothing twice."""

import secrets
from pathlib import Path

import pytest
from flwr.app import Message

from fl_app.device_state import FolderState
from fl_app.errors import ConfigError
from fl_app.run_name import NAME_FILE, RUN_KEY, name_run, parse_name, read_name
from fl_app.run_store import RunStore
from tests.fl_app.devices import (
    ALL,
    CLIENTS,
    METHODS,
    Device,
    copied,
    policy_refused,
    record_requests,
    run_on_devices,
)

ROUNDS = 3
ENGINE = ("engine=deployment", "engine.superlink=none", f"num_rounds={ROUNDS}")
SEARCH = ("strategy.release_rounds=[1,2]", "strategy.num_initial=3")


class KilledError(BaseException):
    pass


def make_devices(folder: Path, max_epsilon: float = 4.0) -> list[Device]:
    policy = {"allowed_strategies": ALL, "max_epsilon": max_epsilon, "max_delta": 1e-5}
    return [Device(folder / f"{number}", number, **policy) for number in range(CLIENTS)]


def upload_of(reply: Message) -> bytes | None:
    """Return what a reply uploads; None for the other exchanges of a round."""
    arrays = reply.content.get("arrays") if reply.has_content() else None
    return None if not arrays else bytes(arrays["update"].data)  # type: ignore[index]


@pytest.mark.parametrize("name", METHODS)
def test_the_interrupted_round_gets_the_same_bytes_and_is_counted_once(
    tmp_path: Path, name: str
) -> None:
    """Flower numbers a resumed run anew; the budget allows one run and no second.

    NISS tries the round again with other noise, which its plan has room for: none may be sent that
    cancels against a round that was not ended.
    """
    extra = SEARCH if name == "dp_fts_de" else ()
    words = (*METHODS[name], *extra, *ENGINE)
    # A search hides whether a client's vectors are zero: exchanged for others, it counts for more.
    devices = make_devices(tmp_path, 10.0 if name == "dp_fts_de" else 4.0)
    sent: list[dict[int, bytes]] = [{}, {}]
    failed: list[object] = []
    at = 0

    def watch(number: int, message: Message, reply: Message) -> None:
        failed.extend([reply.error] if reply.has_error() else [])
        if message.metadata.group_id.split(".")[0] != "2":
            return
        if (upload := upload_of(reply)) is not None:
            sent[at][number] = upload
            if at == 0 and len(sent[0]) == 2:
                raise KilledError

    with pytest.raises(KilledError):
        run_on_devices(tmp_path / "run", devices, *words, run=1, watch=watch)
    before = [len(device.releases) for device in devices]
    at = 1
    outcome = run_on_devices(tmp_path / "run", devices, *words, run=2, resume=True, watch=watch)
    assert failed == []
    assert outcome.summary["num_rounds"] == ROUNDS
    assert len(sent[0]) == 2
    assert len(sent[1]) == CLIENTS
    assert all((sent[1][at] == upload) == (name != "niss") for at, upload in sent[0].items())
    count = 2 if name == "dp_fts_de" else ROUNDS
    assert before.count(2) >= 2
    run = str(read_name(tmp_path / "run" / "checkpoint"))
    for number, device in enumerate(devices):
        again = name == "niss" and number in sent[0]
        assert [each.run for each in device.releases] == [run] * (count + again)
        (spent,) = device.spent
        assert spent.declared_epsilon <= 4.0
        if name == "dp_fts_de":
            # One query a round, whatever was repeated.
            assert len(FolderState(device.folder, run, number).read_observations()) == 3 + 2


def test_another_name_is_another_run_and_no_name_goes_by_flower_s_number(tmp_path: Path) -> None:
    (request, *_) = [
        each
        for each in record_requests(tmp_path / "recorded")
        if "settings" in each.content["config"]
    ]
    names = [secrets.token_hex(16) for _ in range(2)]

    def ask(device: Device, name: object, run: int) -> Message:
        message = copied(request)
        if name is not None:
            message.content["config"][RUN_KEY] = name
        return device.ask(message, run)

    device = Device(tmp_path / "device")
    first = upload_of(ask(device, names[0], 1))
    assert first is not None
    assert upload_of(ask(device, names[0], 2)) == first
    assert [each.run for each in device.releases] == names[:1]
    assert upload_of(ask(device, names[1], 1)) not in (None, first)
    assert upload_of(ask(device, None, 1)) not in (None, first)
    assert [each.run for each in device.releases] == [*names, "1"]
    for bad in ("", "1", names[0].upper(), f"{names[0]}\n", names[0][:-1], 1, 1.5, True, [1], b""):
        assert policy_refused(ask(device, bad, 1)), bad
    assert len(device.releases) == 3


def test_the_name_is_kept_and_checked(tmp_path: Path) -> None:
    assert read_name(tmp_path) is None
    name = name_run(tmp_path)
    assert parse_name({RUN_KEY: name}, 5) == name == name_run(tmp_path) == read_name(tmp_path)
    assert parse_name({}, 5) == "5"
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        parse_name({RUN_KEY: None}, 5)
    (tmp_path / NAME_FILE).write_text(name[:-1])
    with pytest.raises(ConfigError, match="a whole file"):
        name_run(tmp_path)
    (tmp_path / NAME_FILE).write_bytes(b"\xff" * 32)
    with pytest.raises(ConfigError, match="a whole file"):
        read_name(tmp_path)


def test_a_new_run_in_an_old_folder_has_another_name(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        store = RunStore(tmp_path)
        store.checkpoints.mkdir(exist_ok=True)
        names.append(name_run(store.checkpoints))
        store.close()
    assert names[0] != names[1]


def test_without_its_name_a_run_on_devices_does_not_go_on(tmp_path: Path) -> None:
    devices = make_devices(tmp_path)

    def watch(number: int, message: Message, reply: Message) -> None:
        if message.metadata.group_id == "2":
            raise KilledError

    words = (*METHODS["dp_fedpaq"], *ENGINE)
    with pytest.raises(KilledError):
        run_on_devices(tmp_path / "run", devices, *words, watch=watch)
    (tmp_path / "run" / "checkpoint" / NAME_FILE).unlink()
    with pytest.raises(ConfigError, match="run_name: devices know the run by that name"):
        run_on_devices(tmp_path / "run", devices, *words, run=2, resume=True)
