"""Hydra's job handling around runs: output folders, sweeps, and one table at the end."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_app.config import compose_settings, expand_sweep, find_conf, run_under_hydra
from fl_app.data import DataError, load_dataset
from fl_app.errors import ConfigError, RunError
from fl_app.progress import show_progress
from fl_app.report.html import write_report
from fl_app.report.plots import write_plots
from fl_app.report.run_folder import RunFolder, read_run_folder
from fl_app.report.tables import print_tables, summary_table, sweep_table
from fl_app.settings import RunSettings

_SWEEP_FLAGS = ("-m", "--multirun")
_INFORMATION = ("--help", "--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "-h")


def run_jobs(words: list[str], debug: bool) -> int:
    """Run one configuration, or a sweep; return the exit code.

    Every configuration is composed and checked before the first run starts.
    """
    sweep = any(word in _SWEEP_FLAGS for word in words)
    overrides = [word for word in words if "=" in word or word.startswith("~")]
    others = [word for word in words if word not in overrides]
    information = any(word in _INFORMATION for word in others)
    unknown = [w for w in others if w not in _SWEEP_FLAGS + _INFORMATION and w.startswith("-")]
    if unknown or (others and not information and not sweep):
        raise ConfigError("argument", (unknown or others)[0], "key=value, -m, --debug, --help")
    if not information:
        for job in expand_sweep(overrides) if sweep else [overrides]:
            check_data(compose_settings(job))
    finished: list[tuple[list[str], dict[str, Any] | None]] = []
    failures: list[BaseException] = []

    def job(settings: RunSettings, folder: Path, task_overrides: list[str]) -> None:
        try:
            run = execute(settings, folder, show_summary=not sweep)
            finished.append((task_overrides, run.summary))
        except (Exception, KeyboardInterrupt) as error:
            failures.append(error)
            finished.append((task_overrides, None))
            if isinstance(error, KeyboardInterrupt):
                raise
            if sweep:
                print(f"fl-app: {' '.join(task_overrides)}: {error}", file=sys.stderr)

    try:
        run_under_hydra(find_conf(), words, job)
    except KeyboardInterrupt:
        if not failures:
            raise
    if sweep and finished:
        print_tables(sweep_table(finished))
    if failures and not sweep:
        raise failures[0]
    return 1 if failures else 0


def check_data(settings: RunSettings) -> None:
    """Load and divide the data once, so that what is missing is said before anything starts."""
    if settings.num_clients is None:
        raise ConfigError("num_clients", None, "an integer >= 1 (null: only with plain flwr run)")
    try:
        load_dataset(settings.data, settings.num_clients, settings.seed)
    except DataError as error:
        key, _, rest = str(error).partition(": ")
        value, _, allowed = rest.partition("; ")
        raise ConfigError(key, value, allowed) from None


def execute(settings: RunSettings, folder: Path, show_summary: bool = True) -> RunFolder:
    """Run on the configured engine, write plots and report, and print the summary."""
    console = Console()
    with show_progress(folder, settings.rounds, console):
        if settings.engine.name == "simulation":
            from fl_app.engines.flower import run_simulation

            run_simulation(settings, folder)
        else:
            from fl_app.client_app import app as client_app
            from fl_app.engines.in_process import run_in_process
            from fl_app.server_app import app as server_app

            assert settings.num_clients is not None
            run_config = {"settings": settings.to_json(), "output-dir": str(folder)}
            run_in_process(server_app, client_app, settings.num_clients, run_config)
    run = read_run_folder(folder)
    if run.summary is None:
        raise RunError(f"the run left no summary in {folder}")
    write_plots(run, folder / "plots")
    report = write_report(run, folder / "report.html")
    if show_summary:
        print_tables(summary_table(run.summary, run.privacy))
        print(f"report: {report}")
    return run
