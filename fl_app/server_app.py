"""Flower's entry point on the server."""

import contextlib
import dataclasses
import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app.begun_run import BegunRun
from fl_app.client_app import STATE_KEY
from fl_app.data import DataError
from fl_app.device_state import create_state
from fl_app.engines.outcome import Outcome, write_outcome
from fl_app.engines.submitted_run import (
    FOLDER,
    OUTCOME,
    ToldStore,
    is_marked,
    print_progress,
    print_record,
    told_warnings,
)
from fl_app.engines.workers import WorkerWatch
from fl_app.errors import ConfigError, RunError
from fl_app.one_thread import load_torch, use_one_thread
from fl_app.recorded_run import RecordedRun, default_folder
from fl_app.roll_call import is_remote, read_client_ids, read_device_ids
from fl_app.run_config import to_yaml
from fl_app.run_files import PLOTS_FOLDER, REPORT_FILE
from fl_app.run_inputs import load_server_data
from fl_app.run_log import log_to
from fl_app.run_store import RunStore
from fl_app.search_run import SearchRun
from fl_app.search_task import nested_guarantees, read_search_space
from fl_app.settings import EngineSettings, RunSettings

app = ServerApp()
_log = logging.getLogger(__name__)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method on the connected nodes, and say how it ended."""
    use_one_thread()
    failure: str | None = None
    try:
        folder = _run(grid, dict(context.run_config), context.run_id)
    except BaseException as error:
        failure = _describe(error)
        if is_remote(grid) and not isinstance(error, RunError):
            # What is missing there may be installed where the run was started.
            failure = f"on the SuperLink's machine: {failure}"
        raise
    finally:
        if outcome_file := str(context.run_config.get("outcome-file") or ""):
            write_outcome(Path(outcome_file), Outcome(failure))
        if context.run_config.get("mark"):
            print_record(OUTCOME, failure or "")
        if not context.run_config.get("settings"):
            print(f"fl-app: {failure or f'done; the folder of the run is {folder}'}")


def _run(grid: Grid, run_config: Mapping[str, Any], run_id: int) -> Path:
    """Execute the run; return its folder."""
    begun = find_begun_run(run_config)
    if begun is not None and begun.is_finished:
        return begun.folder
    settings, given = (begun.settings, True) if begun else read_settings(run_config)
    if is_remote(grid):
        settings = _as_deployment(settings)
    devices = settings.engine.name == "deployment"
    if devices:
        # Here, because a simulation needs nothing private of Flower.
        from fl_app.engines.prompt_grid import PromptGrid

        grid = PromptGrid(grid)
    elif settings.engine.name == "simulation" and not hasattr(grid, "partition_ids"):
        grid = WorkerWatch(grid)
    kind = ToldStore if run_config.get("mark") else RunStore
    store = kind(begun.folder if begun else read_folder(run_config, run_id), bool(begun))
    if kind is ToldStore:
        print_record(FOLDER, str(store.folder))
    # Devices log for themselves.
    kept_apart = "seeded" if devices else settings.randomness
    warnings = told_warnings() if kind is ToldStore else contextlib.nullcontext()
    with contextlib.closing(store), log_to(store.folder, kept_apart), warnings:
        checkpoint = begun.read_checkpoint() if begun else None
        create_state(store.checkpoints)
        expected = settings.num_clients if given else None
        if devices:
            most = expected if settings.search else None
            tell = print_progress if kind is ToldStore else _log.info
            client_ids = read_device_ids(grid, expected, most, tell)
        else:
            told = None if run_config.get(STATE_KEY) else store.checkpoints
            client_ids = read_client_ids(grid, expected, told)
        # A search has room for agents that are not there: their numbers stay theirs.
        highest = max(client_ids.values(), default=-1) + 1 if devices and settings.search else 0
        settings = dataclasses.replace(settings, num_clients=max(len(client_ids), highest))
        stop = str(run_config.get("stop-file") or "")
        run = _build_run(
            settings, client_ids, store, checkpoint, lambda: bool(stop and Path(stop).exists())
        )
        if begun:
            at = (checkpoint.metrics_bytes, checkpoint.queries_bytes) if checkpoint else (0, 0)
            store.rewind(*at)
        store.write_config(to_yaml(settings))
        summary = run.execute(grid)
        reached = "best_value_mean" if settings.search else "test_accuracy"
        what = reached.replace("_", " ")
        _log.info("%s %s, epsilon %s", what, summary[reached], summary["epsilon"])
        if not run_config.get("settings") or str(store.folder) != run_config["output-dir"]:
            leave_report(store.folder)
    return store.folder


def _build_run(settings: RunSettings, *arguments: Any) -> RecordedRun:
    """Load what the server needs of the data, and build the run."""
    if settings.needs_torch:
        load_torch()
    if settings.search is not None:
        space, nested = read_search_space(settings), nested_guarantees(settings)
        return SearchRun(settings, space, nested, *arguments)
    from fl_app.federated_run import FederatedRun

    return FederatedRun(settings, load_server_data(settings), *arguments)


def leave_report(folder: Path) -> None:
    """Draw plots and report of a run that no launcher waits for; a failure is logged, no more."""
    try:
        from fl_app.report import read_run_folder, write_plots, write_report

        run = read_run_folder(folder)
        write_plots(run, folder / PLOTS_FOLDER)
        write_report(run, folder / REPORT_FILE)
    except Exception as error:
        _log.warning("no report: %s: %s (fl-app report draws it)", type(error).__name__, error)


def find_begun_run(run_config: Mapping[str, Any]) -> BegunRun | None:
    """Return the run that is to go on; None for a new one.

    The launcher says so beside the settings, as it has composed them; with Flower's own command it
    is the override ``resume=FOLDER``.

    Raises
    ------
    ConfigError
        If the folder cannot be resumed, or something else is asked for at the same time.
    """
    if run_config.get("resume"):
        settings, _ = read_settings(run_config)
        folder, mark = Path(str(run_config["output-dir"])), str(run_config.get("mark") or "")
        if mark and not is_marked(folder, mark):
            raise RunError(f"the SuperLink's machine does not see {folder}, or cannot write there")
        return BegunRun(folder, settings)
    overrides = _split(str(run_config.get("overrides") or ""))
    if not any(word.lstrip("+").startswith("resume=") for word in overrides):
        return None
    from fl_app.config import resumed_settings

    found = resumed_settings(overrides)
    if found is None:
        return None
    folder, settings = found
    if not folder.is_absolute():
        raise ConfigError("resume", str(folder), "an absolute path")
    given = str(run_config.get("output-dir") or "")
    if given and Path(given).expanduser().resolve() != folder.resolve():
        raise ConfigError("output-dir", given, "empty beside resume")
    return BegunRun(folder, _as_simulation(settings))


def _describe(error: BaseException) -> str:
    """Return why a run failed, in one line."""
    named = isinstance(error, RunError | ConfigError | DataError)
    text = " ".join(str(error).split())
    return text if named else f"{type(error).__name__}: {text}"


def read_settings(run_config: Mapping[str, Any]) -> tuple[RunSettings, bool]:
    """Return the run's settings, and whether they name the number of clients.

    The launcher passes checked settings as JSON; with Flower's own command they are composed from
    the run configuration's ``overrides``, and the number of clients is the nodes found unless an
    override names it.

    Raises
    ------
    ConfigError
        For whatever is not allowed.
    """
    text, overrides = str(run_config.get("settings") or ""), str(run_config.get("overrides") or "")
    if text and overrides:
        raise ConfigError("overrides", overrides, "empty beside settings")
    if text:
        return RunSettings.from_json(text), True
    from fl_app.config import compose_settings

    words = _split(overrides)
    given = any(word.lstrip("+").startswith("num_clients=") for word in words)
    return _as_simulation(compose_settings(words)), given


def _split(overrides: str) -> list[str]:
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError("overrides", overrides, f"words as in a shell ({error})") from None


def _as_simulation(settings: RunSettings) -> RunSettings:
    """Name the engine: what Flower starts by itself is never the in-process one."""
    if settings.engine.name == "deployment":
        return settings
    engine = dataclasses.replace(settings.engine, name="simulation")
    return dataclasses.replace(settings, engine=engine)


def _as_deployment(settings: RunSettings) -> RunSettings:
    """Name the engine where the nodes are a SuperLink's, whatever the settings say."""
    given = settings.engine
    engine = EngineSettings("deployment", superlink=given.superlink, signed=given.signed)
    return dataclasses.replace(settings, engine=engine)


def read_folder(run_config: Mapping[str, Any], run_id: int) -> Path:
    """Return the run's folder: ``output-dir``, by default a new one under FLWR_HOME.

    A launcher's folder is used only if it is the same here: it may be on another machine.

    Raises
    ------
    ConfigError
        If ``output-dir`` is not absolute: this process's working folder is Flower's choice.
    """
    given, mark = str(run_config.get("output-dir") or ""), str(run_config.get("mark") or "")
    if not given or (mark and not is_marked(Path(given), mark)):
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        folder = default_folder(home / "fl-app")
        return folder.with_name(f"{folder.name}-{run_id}")
    if not Path(given).expanduser().is_absolute():
        raise ConfigError("output-dir", given, "an absolute path")
    return Path(given)
