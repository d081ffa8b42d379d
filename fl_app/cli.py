"""The command line: fl-app run | evaluate | report | ledger | sign | list."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from fl_app.conf_folder import describe_choices
from fl_app.errors import ConfigError, RunError, list_choices

USAGE = """\
usage: fl-app [run] [-m] [key=value ...]     train or search; -m sweeps over comma-separated values
       fl-app run resume=RUN [engine=...]    go on with a run that was stopped or killed
       fl-app run -m ... resume=SWEEP        the same command with the sweep's folder: what is left
       fl-app evaluate RUN [data=...]        evaluate a run's model (one with code of your own:
                                             name it again, model.path=mine:build data.path=...)
       fl-app report RUN [RUN ...]           write report.html, for one run or to compare several
       fl-app ledger RUN [--best]            show what was taken from each client of a run; --best:
                                             each client's best point of a simulated search: secrets
       fl-app ledger --state-dir DIR [max-epsilon=...] [max-delta=...]
                                             show what all runs have taken from a device
       fl-app ledger --state-dir DIR --best  show the best points of its own searches: secrets
       fl-app sign KEY FOLDER                sign the code that is installed here, for devices
       fl-app list [strategies|data|models|objectives|experiments]

  --debug               show tracebacks
  --config-dir FOLDER   (run) add files of your own: FOLDER/experiment/mine.yaml, experiment=mine
  fl-app run --help shows every key with its default; the files in conf/ explain them.
Exit codes: 0 done, 1 the run failed, 2 bad configuration."""

_LISTS = {
    "strategies": "strategy",
    "data": "data",
    "models": "model",
    "objectives": "objective",
    "experiments": "experiment",
}
_HELP = ("--help", "-h")
_TERMINAL = "fl-app terminal"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    sys.exit(guarded(lambda: _dispatch(words, debug), debug))


def guarded(action: Callable[[], int], debug: bool) -> int:
    """Return an action's exit code; failures become one clear line and the code they stand for."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output needs no more of it; the interpreter must not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if debug:
            traceback.print_exc()
        code, text = _judge(error)
        print(f"fl-app: {text}", file=sys.stderr)
        return code


def _judge(error: BaseException) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return 1, f"interrupted; fl-app run {error}" if str(error) else "interrupted"
    if isinstance(error, SystemExit):
        return 1, "the user's own code ended the program (sys.exit)"
    if isinstance(error, ConfigError):
        return 2, str(error)
    if isinstance(error, RunError):
        return 1, str(error)
    # Imported here, because a correct command line must not wait for it.
    from fl_app.data.records import DataError
    from fl_app.report.run_folder import ReportError

    if isinstance(error, DataError | ReportError):
        return 2, str(error)
    return 1, f"{type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)"


def _dispatch(words: list[str], debug: bool) -> int:
    verbs = {
        "run": _run,
        "evaluate": _evaluate,
        "report": _report,
        "ledger": _ledger,
        "sign": _sign,
        "list": _list,
    }
    first = words[0] if words else "run"
    if first in (*_HELP, "help") or (first in verbs and first != "run" and set(words) & set(_HELP)):
        print(USAGE)
        return 0
    if first == "--version":
        print(f"fl-app {version('private-fl-app')}")
        return 0
    if first in verbs:
        return verbs[first](words[1:], debug)
    if "=" in first or first.startswith("-"):
        return _run(words, debug)
    raise ConfigError("verb", first, list_choices(first, verbs))


def _run(words: list[str], debug: bool) -> int:
    from fl_app.hydra_jobs import run_jobs

    with _warnings_on_terminal():
        return run_jobs(words, debug)


def _evaluate(words: list[str], debug: bool) -> int:
    if not words or ("=" in words[0] and not Path(words[0]).is_dir()):
        raise ConfigError("RUN", words[0] if words else None, "the folder of a finished run")
    from fl_app.saved_run import evaluate_run

    outcome = evaluate_run(Path(words[0]), words[1:])
    print(
        f"test accuracy {outcome.accuracy:.4f}  test loss {outcome.loss:.4f}  "
        f"({outcome.num_records} records)"
    )
    return 0


def _report(words: list[str], debug: bool) -> int:
    from fl_app.report.html import write_report
    from fl_app.report.printing import print_searches
    from fl_app.report.run_folder import read_run_folder

    if not words:
        raise ConfigError("RUN", None, "the folders of one or more runs")
    runs = [read_run_folder(word) for word in words]
    target = runs[0].path / "report.html" if len(runs) == 1 else Path.cwd() / "report.html"
    print_searches(runs)
    try:
        print(write_report(runs, target))
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}") from error
    return 0


def _ledger(words: list[str], debug: bool) -> int:
    from fl_app.device_ledger import list_releases
    from fl_app.device_spending import spend_by_run
    from fl_app.device_state import STATE_FILE, list_best, list_entries
    from fl_app.report.ledger_tables import best_table, ledger_table
    from fl_app.report.tables import print_tables
    from fl_app.run_files import CHECKPOINT_FOLDER

    given, best = len(words) >= 2 and words[0] == "--state-dir", words[1:] == ["--best"]
    if not given and (not (best or len(words) == 1) or words[0].startswith("-")):
        allowed = "RUN, a run's folder, RUN --best, or --state-dir DIR"
        raise ConfigError("ledger", " ".join(words), allowed)
    folder = Path(words[1]) if given else Path(words[0]) / CHECKPOINT_FOLDER
    if not (folder / STATE_FILE).is_file():
        raise ConfigError(
            "ledger", words[1 if given else 0], f"a folder with {folder / STATE_FILE}"
        )
    if not given and best:
        from fl_app.run_config import read_run_space

        print_tables(best_table(list_best(folder), read_run_space(Path(words[0]))))
        return 0
    if not given:
        if entries := list_entries(folder):
            print_tables(ledger_table(entries, spend_by_run(list_releases(folder))))
        else:
            print("no client has its ledger here; a device's own: fl-app ledger --state-dir DIR")
        return 0
    if words[2:] == ["--best"]:
        print_tables(best_table(list_best(folder)))
        return 0
    from fl_app.device_policy import MAX_DELTA_KEY, MAX_EPSILON_KEY, read_limit
    from fl_app.report.spending_table import spending_table

    limits = dict(word.partition("=")[::2] for word in words[2:])
    allowed = f"{MAX_EPSILON_KEY}=..., {MAX_DELTA_KEY}=..., or --best alone"
    if unknown := limits.keys() - {MAX_EPSILON_KEY, MAX_DELTA_KEY}:
        raise ConfigError("ledger", min(unknown), allowed)
    most = read_limit(limits, MAX_EPSILON_KEY), read_limit(limits, MAX_DELTA_KEY, below=1.0)
    print_tables(spending_table(spend_by_run(list_releases(folder)), *most))
    return 0


def _sign(words: list[str], debug: bool) -> int:
    if len(words) != 2:
        raise ConfigError("sign", " ".join(words), "KEY FOLDER")
    from fl_app.engines.signed_bundle import sign_bundle

    signature = sign_bundle(Path(words[1]), Path(words[0]))
    # A line of a device's file of trusted signers, which is YAML.
    print(f'"{signature.signer}": "{signature.public_key}"')
    return 0


def _list(words: list[str], debug: bool) -> int:
    for word in words:
        if word not in _LISTS:
            raise ConfigError("list", word, list_choices(word, _LISTS))
    for word in words or _LISTS:
        choices = describe_choices(_LISTS[word])
        width = max(map(len, choices))
        print(f"{word} ({_LISTS[word]}=...)")
        for name, text in choices.items():
            print(f"  {name:{width}}  {text}")
    return 0


@contextmanager
def _warnings_on_terminal() -> Iterator[None]:
    """Show warnings on the terminal, each once and in one line; run.log gets everything.

    Of a sweep with the number of the job, and at the end with those that had the same.
    """
    from fl_app.report.printing import write_numbers
    from fl_app.sweep import current_job

    shown: dict[str, dict[int, None]] = {}

    class OneLine(logging.Formatter):
        def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
            return ""

        def format(self, record: logging.LogRecord) -> str:
            # A traceback cached by another handler must not be appended; those after may need it.
            cached, record.exc_text = record.exc_text, None
            text = super().format(record).strip()
            record.exc_text = cached
            return text if (job := current_job()) is None else f"job {job}: {text}"

    def is_new(record: logging.LogRecord) -> bool:
        # What fails on one client often fails on all, in every round.
        text = record.getMessage()
        is_first = text not in shown
        jobs = shown.setdefault(text, {})
        if (job := current_job()) is not None:
            jobs[job] = None
        return is_first

    handler = logging.StreamHandler()
    handler.addFilter(is_new)
    handler.set_name(_TERMINAL)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for text, (_, *others) in ((text, jobs) for text, jobs in shown.items() if jobs):
            if others:
                short = text if len(text) <= 60 else f"{text[:60]}..."
                print(f"the same in jobs {write_numbers(others)}: {short}", file=sys.stderr)


if __name__ == "__main__":
    main()
