"""After a run has ended, no file of its folder holds a key or a nonce of any client."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_app import recorded_run
from fl_app.device_state import FolderState
from tests.conftest import REPOSITORY, Outcome
from tests.integration.launcher import Launcher, new_launcher

CLIENTS, ROUNDS = 5, 3
RUN = ("strategy=niss", f"num_clients={CLIENTS}", f"num_rounds={ROUNDS}", "randomness=secret")
SECRETS = ("niss.exchange", "niss.identity", "niss.pending")
# Imported by each process of a run as it starts, whoever starts it.
HOOK = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    busy = False

    def find_spec(self, name, path, target=None):
        if name != "fl_app.device_state" or self.busy:
            return None
        self.busy = True
        spec = importlib.util.find_spec(name)
        self.busy = False
        execute = spec.loader.exec_module

        def run(module):
            execute(module)
            write = module.FolderState.write_key

            def tell(self, name, key):
                with open({log!r}, "a") as file:
                    file.write(name + " " + key.hex() + "\\n")
                write(self, name, key)

            module.FolderState.write_key = tell

        spec.loader.exec_module = run
        return spec

sys.meta_path.insert(0, Finder())
"""


def secrets_of(written: list[tuple[str, bytes]]) -> set[bytes]:
    """Return private keys, and nonces without the number of their round."""
    found = {name: {key[-32:] for each, key in written if each == name} for name in SECRETS[:2]}
    nonces = {key[16:] for name, key in written if name == "niss.pending"}
    assert [len(each) for each in found.values()] == [CLIENTS, CLIENTS]
    assert len(nonces) == CLIENTS * ROUNDS
    assert {len(each) for each in nonces} == {16}
    return set().union(*found.values(), nonces)


def where(folder: Path, secrets: set[bytes]) -> set[str]:
    """Return the names of the files that hold a secret, as bytes or in hexadecimal digits."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert "devices.sqlite" in {each.name for each in files}
    assert {"summary.json", "privacy.json"} <= {each.name for each in files}
    return {
        each.name
        for each in files
        for content in [each.read_bytes()]
        if any(key in content or key.hex().encode() in content.lower() for key in secrets)
    }


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    write = FolderState.write_key

    def tell(self: FolderState, name: str, key: bytes) -> None:
        found.append((name, key))
        write(self, name, key)

    monkeypatch.setattr(FolderState, "write_key", tell)
    return found


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_nothing_is_left_in_process(
    run: Callable[..., Outcome], written: list[tuple[str, bytes]], kind: str
) -> None:
    outcome = run(*RUN, f"strategy.pair_noise={kind}")
    assert where(outcome.folder, secrets_of(written)) == set()


def test_a_twin_that_forgets_nothing_is_caught(
    run: Callable[..., Outcome],
    written: list[tuple[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_run, "forget_keys", lambda _: True)
    outcome = run(*RUN)
    assert where(outcome.folder, secrets_of(written)) & {"devices.sqlite", "devices.sqlite-wal"}


def test_keys_that_stay_in_the_log_are_told_of(
    run: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = "deleted keys are still in the log of"
    run(*RUN)
    assert words not in caplog.text
    monkeypatch.setattr(recorded_run, "forget_keys", lambda _: False)
    run(*RUN)
    assert words in caplog.text


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    found = new_launcher()
    yield found
    found.close()


@pytest.mark.slow
def test_nothing_is_left_in_a_simulation(launcher: Launcher, tmp_path: Path) -> None:
    log = tmp_path / "keys"
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK.replace("{log!r}", repr(str(log))))
    code, _, errors = launcher.run(
        *("run", *RUN, "engine=simulation", "engine.workers=2", "hydra.run.dir=out"),
        environment={"PYTHONPATH": os.pathsep.join([str(hook), str(REPOSITORY)])},
    )
    assert (code, errors) == (0, "")
    lines = [line.split() for line in log.read_text().splitlines()]
    secrets = secrets_of([(name, bytes.fromhex(key)) for name, key in lines])
    assert where(launcher.folder / "out", secrets) == set()
    launcher.assert_nothing_is_left()
