"""Hydra's job handling around runs: the words of a command line, sweeps, one table at the end."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fl_app.config import (
    RESUME,
    compose_config,
    expand_home,
    expand_sweep,
    parse_override,
    resumed_settings,
    run_under_hydra,
    settings_from,
    sweeps_by_itself,
)
from fl_app.errors import ConfigError, RunError
from fl_app.run_inputs import check_data, fill_num_clients, with_absolute_paths

if TYPE_CHECKING:
    from fl_app.begun_run import BegunRun
    from fl_app.report.run_folder import RunFolder
    from fl_app.settings import RunSettings

_ALLOWED = (
    "key=value, -m, --config-dir FOLDER, --debug, --help, --cfg job|hydra|all (with --package KEY, "
    "--resolve), --info, --hydra-help, --version"
)
_FILE_GROUPS = ("strategy", "objective", "data", "model", "engine", "experiment")
_INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True)
class RunWords:
    """The words behind ``fl-app run``.

    Attributes
    ----------
    overrides : list of str
        ``key=value``, one for ``--config-dir`` among them.
    flags : list of str
        Hydra's own flags, to be passed on.
    sweep : bool
        Whether values are swept over (``-m``).
    shows : bool
        Whether something is shown and nothing run (``--help``, ``--cfg`` ...).
    """

    overrides: list[str]
    flags: list[str]
    sweep: bool
    shows: bool


def parse_words(words: list[str]) -> RunWords:
    """Sort the words of a command line into overrides and Hydra's flags.

    Raises
    ------
    ConfigError
        For a word that is neither.
    """
    parser = _Parser(prog="fl-app run", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-p", "--package")
    parser.add_argument("--resolve", action="store_true")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("-m", "--multirun", action="store_true")
    one.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    one.add_argument("-i", "--info", nargs="?", const="all", choices=_INFORMATION)
    for names in (["-h", "--help"], ["--hydra-help"], ["--version"]):
        one.add_argument(*names, dest="show", action="store_const", const=names[-1])
    given = parser.parse_intermixed_args(words)
    flags = [given.show] if given.show else []
    for name in ("cfg", "info", "package"):
        value = getattr(given, name)
        flags += [] if value is None else [f"--{name}", value]
    flags += ["--resolve"] if given.resolve else []
    if flags and flags[0] in ("--package", "--resolve"):
        raise ConfigError("argument", flags[0], f"{flags[0]} beside --cfg job|hydra|all")
    overrides = list(given.overrides)
    if given.config_dir is not None:
        folder = Path(given.config_dir).expanduser().absolute()
        if not folder.is_dir():
            raise ConfigError("--config-dir", given.config_dir, "a folder with files as in conf/")
        overrides.append(f"hydra.searchpath=[{json.dumps(f'file://{folder}', ensure_ascii=False)}]")
    sweep = given.multirun or "hydra.mode=MULTIRUN" in overrides
    return RunWords(overrides, flags, sweep, shows=bool(flags))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError.from_text(f"{message.removeprefix('argument ')}; allowed: {_ALLOWED}")


def run_jobs(words: list[str], debug: bool) -> int:
    """Run one configuration, or a sweep; return the exit code.

    Every configuration is composed and checked before the first run starts. A job that fails does
    not stop the others of a sweep; Ctrl-C does, after the round.

    Raises
    ------
    ConfigError
        If a configuration is not allowed; nothing was run or created.
    KeyboardInterrupt
        If a run was stopped; what it reached was written and printed.
    """
    given = parse_words(words)
    begun = None if given.shows else _find_begun_run(given)
    if begun is not None:
        return _go_on(begun, given.overrides)
    sweep = given.sweep or (not given.shows and sweeps_by_itself(given.overrides))
    words = put_off_keys(given.overrides) if sweep else given.overrides
    jobs = expand_sweep(words) if sweep else [words]
    composed = [compose_config(job) for job in jobs]
    if given.shows:
        return _show(given)
    for each in composed:
        if each[RESUME] is not None:
            raise ConfigError(
                RESUME, each[RESUME], f"{RESUME}=FOLDER as an argument, not in a file"
            )
        check_data(settings_from(each))
    finished: list[tuple[list[str], RunFolder | None]] = []
    failures: list[Exception] = []
    interrupted: KeyboardInterrupt | None = None

    def job(
        read_settings: Callable[[], RunSettings], folder: Path, task_overrides: list[str]
    ) -> None:
        run = None
        try:
            settings = read_settings()
            run = execute(settings, folder, show_summary=not sweep)
            if run.summary and run.summary.get("interrupted"):
                from fl_app.named_code import name_again

                raise KeyboardInterrupt(f"{name_again(folder, settings)} goes on")
        except (Exception, SystemExit) as error:
            failures.append(_as_failure(error))
            if sweep:
                if debug:
                    traceback.print_exc()
                print(f"fl-app: {' '.join(task_overrides)}: {_describe(error)}", file=sys.stderr)
        finally:
            finished.append((task_overrides, run))

    try:
        run_under_hydra(["-m"] if sweep else [], words, job)
    except KeyboardInterrupt as error:
        interrupted = error
    if sweep and finished:
        from fl_app.report.printing import print_sweep

        print_sweep(finished)
    if interrupted is not None:
        raise interrupted
    if failures and not sweep:
        raise failures[0]
    return 1 if failures else 0


def put_off_keys(overrides: list[str]) -> list[str]:
    """Let each job set the keys that only a swept choice of a file may have.

    Of ``strategy=a,b strategy.key=1`` Hydra composes once without a strategy of the two, where the
    key may be unknown; a sweep over one value is set in the jobs alone.

    Parameters
    ----------
    overrides : list of str
        Of a sweep.

    Returns
    -------
    list of str
        With ``key=choice(value)`` for dotted keys with one value, where files are swept over.
    """
    words = expand_home(overrides)
    try:
        parsed = [parse_override(word, sweep=True) for word in words]
    except ConfigError:
        return overrides  # whoever expands the sweep says what is wrong
    swept = [each.key_or_group for each in parsed if each.is_sweep_override()]
    if not set(swept).intersection(_FILE_GROUPS):
        return overrides
    found = []
    for word, each in zip(words, parsed, strict=True):
        key, _, value = word.partition("=")
        is_one = not each.is_sweep_override() and not each.is_hydra_override()
        found.append(f"{key}=choice({value})" if is_one and "." in key and value else word)
    return found


def _find_begun_run(given: RunWords) -> BegunRun | None:
    """Return the run that is to go on; None for a new one."""
    words = [word for word in given.overrides if word.lstrip("+").startswith(f"{RESUME}=")]
    if not words:
        return None
    if given.sweep:
        raise ConfigError(RESUME, words[-1].partition("=")[2], "one run, without -m")
    found = resumed_settings(given.overrides)
    if found is None:
        return None
    from fl_app.begun_run import BegunRun

    return BegunRun(found[0].resolve(), found[1])


def _go_on(begun: BegunRun, overrides: list[str]) -> int:
    """Resume a run; return the exit code."""
    if begun.is_finished:
        print(f"{begun.folder}: the run is finished, and stays as it is")
        return 0
    # What is damaged or missing is said before anything is changed.
    begun.read_checkpoint()
    check_data(begun.settings)
    hydra = [word for word in overrides if word.lstrip("+").startswith("hydra.")]
    if any(word.lstrip("+").startswith("hydra.run.dir=") for word in hydra):
        raise ConfigError(
            "hydra.run.dir", str(begun.folder), f"the folder of {RESUME}: leave it out"
        )
    folder = json.dumps(str(begun.folder), ensure_ascii=False)
    failures: list[Exception] = []

    def job(*_: object) -> None:
        try:
            run = execute(begun.settings, begun.folder, resume=True)
        except (Exception, SystemExit) as error:
            failures.append(_as_failure(error))  # Hydra would add lines of its own
            return
        if run.summary and run.summary.get("interrupted"):
            from fl_app.named_code import name_again

            raise KeyboardInterrupt(f"{name_again(begun.folder, begun.settings)} goes on")

    run_under_hydra([], [*hydra, f"hydra.run.dir={folder}"], job)
    if failures:
        raise failures[0]
    return 0


def _as_failure(error: BaseException) -> Exception:
    """Return the error; code that ended the program has failed, whatever its exit code."""
    return error if isinstance(error, Exception) else RunError("its code ended it (sys.exit)")


def execute(
    settings: RunSettings, folder: Path, show_summary: bool = True, resume: bool = False
) -> RunFolder:
    """Run on the configured engine, write plots and report, and print the summary.

    With `resume`, the run that was begun in the folder goes on.
    """
    from rich.console import Console

    from fl_app.progress import show_progress
    from fl_app.report.html import write_report
    from fl_app.report.plots import write_plots
    from fl_app.report.published import published_table
    from fl_app.report.run_folder import read_run_folder
    from fl_app.report.tables import print_tables, summary_table
    from fl_app.run_log import describe_warnings
    from fl_app.run_store import CHECKPOINT_FOLDER, PLOTS_FOLDER, REPORT_FILE

    settings = fill_num_clients(with_absolute_paths(settings))
    # Of a sweep's jobs a file holds the table alone.
    shown = show_progress(folder, settings.rounds, Console(), lines=show_summary, resume=resume)
    with shown as tell:
        if settings.engine.name == "simulation":
            from fl_app.engines.flower import run_simulation

            run_simulation(settings, folder, resume)
        elif settings.engine.name == "deployment":
            from fl_app.engines.deployment import run_deployment

            run_deployment(settings, folder, resume, tell)
        else:
            from fl_app.client_app import CLIENT_APP, STATE_KEY
            from fl_app.client_app import app as client_app
            from fl_app.engines.in_process import run_in_process
            from fl_app.engines.worker_pool import start_workers
            from fl_app.server_app import app as server_app

            assert settings.num_clients is not None
            run_config: dict[str, str | int | float] = {
                "settings": settings.to_json(),
                "output-dir": str(folder),
                "resume": resume,
                STATE_KEY: str(folder.absolute() / CHECKPOINT_FOLDER),
            }
            given = (settings.num_clients, run_config)
            with start_workers(settings.engine.workers, CLIENT_APP, *given) as pool:
                run_in_process(server_app, client_app, *given, pool)
    run = read_run_folder(folder)
    if run.summary is None:
        raise RunError(f"the run left no summary in {folder}")
    # Before the report, which a full disk may prevent.
    if show_summary:
        print_tables(summary_table(run.summary, run.privacy))
        if beside := published_table([("", run.summary)]):
            print_tables(beside)
        if warned := describe_warnings(folder, settings.randomness):
            print(f"! {warned}")
    try:
        write_plots(run, folder / PLOTS_FOLDER)
        report = write_report(run, folder / REPORT_FILE)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from error
    if show_summary:
        print(f"report: {report}")
    return run


def _show(given: RunWords) -> int:
    """Let Hydra show what its flags ask for; it runs nothing then."""
    try:
        run_under_hydra(given.flags, given.overrides, lambda *_: None)
    except SystemExit as end:
        return 2 if end.code else 0
    return 0


def _describe(error: BaseException) -> str:
    known = isinstance(error, RunError | ValueError)
    return str(error) if known else f"{type(error).__name__}: {error}"
