"""Hydra's job handling around runs: one run, a sweep of several, or a run that goes on."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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
from fl_app.run_words import RunWords, parse_words
from fl_app.sweep import (
    OtherSettingsError,
    find_begun,
    show_overrides,
    take_resumed,
    told_job,
    write_again,
)

if TYPE_CHECKING:
    from fl_app.begun_run import BegunRun
    from fl_app.report.run_folder import RunFolder
    from fl_app.settings import RunSettings

_FILE_GROUPS = ("strategy", "objective", "data", "model", "engine", "experiment")


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
    words = take_resumed(given.overrides) if sweep and not given.shows else given.overrides
    resumes = words is not given.overrides
    words = put_off_keys(words) if sweep else words
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
    if sweep:
        return _sweep(words, jobs, given.overrides, resumes, debug)
    failures: list[Exception] = []

    def job(read_settings: Callable[[], RunSettings], folder: Path, *_: object) -> None:
        try:
            settings = read_settings()
            _raise_if_stopped(execute(settings, folder), folder, settings)
        except (Exception, SystemExit) as error:
            failures.append(_as_failure(error))  # Hydra would add lines of its own

    run_under_hydra([], words, job)
    if failures:
        raise failures[0]
    return 0


def _sweep(
    words: list[str], jobs: list[list[str]], typed: list[str], resumes: bool, debug: bool
) -> int:
    """Run the jobs of a sweep, or those that are left of it; return the exit code."""
    from fl_app.report.printing import SweepJob, print_sweep
    from fl_app.report.run_folder import read_run_folder

    shown = [show_overrides(each) for each in jobs]
    done: list[SweepJob] = []
    again, is_foreign = "", False

    def job(
        read_settings: Callable[[], RunSettings], folder: Path, _: list[str], every: Path
    ) -> None:
        nonlocal again, is_foreign
        again = write_again(typed, every)
        number = len(done)
        run, rounds, is_failed, is_stopped = None, None, False, False
        with told_job(number, shown) as told:
            try:
                settings = fill_num_clients(with_absolute_paths(read_settings()))
                rounds = settings.rounds
                try:
                    begun = find_begun(folder, settings) if resumes else None
                except OtherSettingsError:
                    is_foreign = True
                    raise
                if is_foreign and begun is None:
                    rule = "no new job in a sweep of other settings: sweep it elsewhere"
                    raise ConfigError(RESUME, str(folder), rule)
                if begun is not None and begun.is_finished:
                    run = read_run_folder(folder)
                else:
                    run = execute(settings, folder, show_summary=False, resume=begun is not None)
                    is_stopped = bool(run.summary and run.summary.get("interrupted"))
            except (Exception, SystemExit) as error:
                is_failed = True
                if debug:
                    traceback.print_exc()
                print(f"fl-app: {' '.join(shown[number])}: {_describe(error)}", file=sys.stderr)
            finally:
                told.append(SweepJob(shown[number], run, rounds, is_failed))
                done.extend(told)
        if is_stopped:
            raise KeyboardInterrupt

    interrupted = False
    try:
        run_under_hydra(["-m"], words, job)
    except KeyboardInterrupt:
        interrupted = True
    if done:
        print_sweep(done, len(jobs))
    if interrupted:
        raise KeyboardInterrupt(f"{again} goes on" if again else "")
    return 1 if any(each.is_failed for each in done) else 0


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
    if not words or given.sweep:
        return None
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
        _raise_if_stopped(run, begun.folder, begun.settings)

    run_under_hydra([], [*hydra, f"hydra.run.dir={folder}"], job)
    if failures:
        raise failures[0]
    return 0


def _raise_if_stopped(run: RunFolder, folder: Path, settings: RunSettings) -> None:
    """Raise KeyboardInterrupt if Ctrl-C has ended a run after a round."""
    if run.summary and run.summary.get("interrupted"):
        from fl_app.named_code import name_again

        raise KeyboardInterrupt(f"{name_again(folder, settings)} goes on")


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
    from fl_app.run_files import CHECKPOINT_FOLDER, PLOTS_FOLDER, REPORT_FILE
    from fl_app.run_log import describe_warnings

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
