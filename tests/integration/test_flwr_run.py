"""Flower's own `flwr run` works as its users expect, with three variables in the environment."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_app.config import compose_settings
from fl_app.device_state import list_entries
from fl_app.engines.superlink import find_free_port
from fl_app.federated_run import FederatedRun
from fl_app.hydra_jobs import execute
from tests.conftest import REPOSITORY, Outcome, read_outcome
from tests.integration.launcher import Launcher, new_launcher
from tests.integration.searches import AGENTS, SEARCH, read_search

pytestmark = pytest.mark.slow

SCRIPTS = Path(sys.executable).parent
FLWR = (str(SCRIPTS / "flwr"),)
VARIABLES = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


class Flower:
    """A user's Flower: a home and a local SuperLink of its own, which `flwr run` starts."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.home = launcher.folder / "home"
        self._environment = {
            **VARIABLES,
            "FLWR_HOME": str(self.home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(find_free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(find_free_port()),
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "RAY_TMPDIR": str(launcher.folder),
        }

    def call(self, *words: str, folder: Path = REPOSITORY) -> str:
        """Call `flwr` in the checkout, as README says; return what it printed."""
        code, output, errors = self.launcher.run(
            *words, cwd=folder, environment=self._environment, command=FLWR
        )
        assert code == 0, errors
        return output

    def run(self, *words: str, folder: Path = REPOSITORY) -> tuple[str, str]:
        """Run the app; return the run's final status and its log."""
        log = self.call("run", ".", *words, "--stream", folder=folder)
        (number,) = re.findall(r"Successfully started run (\d+)", log)
        listed = self.call("list", "--run-id", number, "--format", "json")
        return json.loads(listed[listed.index("{") :])["runs"][0]["status"], log

    def stop(self) -> None:
        for number, words in self.launcher.processes().items():
            if any(word.endswith("flower-superlink") for word in words):
                os.kill(number, signal.SIGTERM)
        self.launcher.wait_until(lambda: not self.launcher.processes(), 60)


@pytest.fixture(scope="module")
def flower() -> Iterator[Flower]:
    launcher = new_launcher()
    yield Flower(launcher)
    launcher.close()


def test_the_example_in_the_readme(flower: Flower, tmp_path: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for name, kind, file in (("example", "python", "example.py"), ("example project", "toml", "")):
        found = re.search(rf"<!-- {name} -->\n```{kind}\n(.*?)```", readme, re.S)
        assert found is not None
        (tmp_path / (file or "pyproject.toml")).write_text(found.group(1), encoding="utf-8")
    status, log = flower.run(folder=tmp_path)
    assert status == "finished:completed"
    assert "OrderedDict([('weight', tensor(" in log


def say(words: str) -> tuple[str, str]:
    return "--run-config", words


def test_the_nodes_found_are_the_clients_and_the_folder_is_said(
    run: Callable[..., Outcome], flower: Flower
) -> None:
    status, log = flower.run(
        *say('overrides="num_rounds=3 seed=4"'), "--federation-config", "num-supernodes=5"
    )
    assert status == "finished:completed"
    (folder,) = re.findall(r"^fl-app: done; the folder of the run is (.+)$", log, re.MULTILINE)
    assert Path(folder).is_relative_to(flower.home / "fl-app")
    outcome = read_outcome(Path(folder))
    assert (outcome.summary["num_clients"], outcome.summary["num_rounds"]) == (5, 3)
    assert outcome.summary["engine"] == "simulation"
    assert outcome.sha256 == run("num_rounds=3", "num_clients=5", "seed=4").sha256
    # Clients keep their states in the folder, which only the server knew at first.
    left = {path.name for path in Path(folder).iterdir()}
    assert {"report.html", "plots", "privacy.json", "model.safetensors"} <= left
    page = (Path(folder) / "report.html").read_text(encoding="utf-8")
    assert outcome.sha256[:12] in page
    assert {path.suffix for path in (Path(folder) / "plots").iterdir()} == {".png"}
    entries = list_entries(Path(folder) / "checkpoint")
    assert [(each.client, each.entry.participations) for each in entries] == [
        (client, 3) for client in range(5)
    ]
    flower.launcher.assert_nothing_is_installed()


def test_a_wrong_override_fails_the_run_with_its_reason_in_the_log(flower: Flower) -> None:
    folder = flower.launcher.folder / "wrong"
    status, log = flower.run(
        *say(f'overrides="num_roundz=3" output-dir="{folder}"'),
    )
    assert status == "finished:failed"
    (reason,) = re.findall(r"^fl-app: (.+)$", log, re.MULTILINE)
    assert "num_roundz" in reason
    assert "did you mean num_rounds?" in reason
    assert not folder.exists()


def test_a_killed_run_goes_on(
    run: Callable[..., Outcome], flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun in process, where it fails after a round, and ended by Flower's own command."""
    words = ("num_rounds=4", "num_clients=4", "seed=4", "strategy.max_participations=3")
    expected = run(*words)
    save = FederatedRun._save

    def fail(self: FederatedRun, arrays: object) -> None:
        save(self, arrays)  # type: ignore[arg-type]
        if self._totals["rounds"] == 2:
            raise KeyboardInterrupt

    folder = flower.launcher.folder / "begun"
    monkeypatch.setattr(FederatedRun, "_save", fail)
    with pytest.raises(KeyboardInterrupt):
        execute(compose_settings(list(words)), folder, show_summary=False)
    four = ("--federation-config", "num-supernodes=4")
    status, log = flower.run(*say(f'overrides="resume={folder}"'), *four)
    assert status == "finished:completed"
    outcome = read_outcome(folder)
    assert outcome.sha256 == expected.sha256
    assert outcome.summary["engine"] == "simulation"
    rows = [[{**row, "seconds": None} for row in each.rows] for each in (outcome, expected)]
    assert rows[0] == rows[1]
    assert {each.entry.participations for each in list_entries(folder / "checkpoint")} == {3}
    status, log = flower.run(*say(f'overrides="resume={folder}"'), *four)
    assert status == "finished:completed"
    assert f"fl-app: done; the folder of the run is {folder}" in log
    status, log = flower.run(*say(f'overrides="resume={folder} seed=2"'), *four)
    assert status == "finished:failed"
    assert "fl-app: seed: '2'; allowed: engine.* and hydra.* beside resume" in log


def test_a_search_on_as_many_nodes_as_it_has_agents(
    run: Callable[..., Outcome], flower: Flower
) -> None:
    found, expected = (flower.launcher.folder / name for name in ("search", "searched"))
    nodes = ("--federation-config", f"num-supernodes={AGENTS}")
    words = " ".join(SEARCH)
    status, log = flower.run(*say(f'overrides="{words}" output-dir="{found}"'), *nodes)
    assert status == "finished:completed"
    assert f"fl-app: done; the folder of the run is {found}" in log
    execute(compose_settings(list(SEARCH)), expected, show_summary=False)
    assert read_search(found) == read_search(expected)


def test_a_search_on_other_nodes_says_what_to_set(flower: Flower) -> None:
    status, log = flower.run(
        *say('overrides="strategy=dp_fts_de"'), "--federation-config", "num-supernodes=2"
    )
    assert status == "finished:failed"
    assert (
        "fl-app: num_clients: 2; allowed: the agents of objective=synthetic, 30, or null; with "
        "flwr run: --federation-config num-supernodes=30\n" in log
    )


def test_the_folder_can_be_named_and_the_superlink_stopped(flower: Flower) -> None:
    folder = flower.launcher.folder / "named folder"
    status, log = flower.run(
        *say(f"overrides='num_rounds=1 strategy=fedavg' output-dir=\"{folder}\""),
    )
    assert status == "finished:completed"
    assert f"fl-app: done; the folder of the run is {folder}" in log
    assert (folder / "report.html").exists()
    assert read_outcome(folder).summary["num_clients"] == 2  # Flower's own default
    flower.launcher.assert_nothing_is_installed()
    flower.stop()
