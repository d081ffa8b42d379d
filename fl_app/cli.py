"""The command line: fl-app run | evaluate | report | list."""

import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fl_app.errors import ConfigError, RunError

USAGE = """\
usage: fl-app [run] [-m] [key=value ...]     train; -m sweeps over comma-separated values
       fl-app evaluate RUN [data=...]        evaluate a run's model
       fl-app report RUN [RUN ...]           write report.html, for one run or to compare several
       fl-app list [strategies|data|models|experiments]

  --debug   show tracebacks
  fl-app run --help shows every key with its default; conf/ explains them.
Exit codes: 0 done, 1 the run failed, 2 bad configuration."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] in (["--help"], ["-h"], ["help"]):
        print(USAGE)
        sys.exit(0)
    verbs: dict[str, Callable[[list[str], bool], int]] = {
        "run": _run,
        "evaluate": _evaluate,
        "report": _report,
        "list": _list,
    }
    first = words[0] if words else "run"
    if first in verbs:
        verb, rest = first, words[1:]
    elif "=" in first or first.startswith("-"):
        verb, rest = "run", words
    else:
        _complain(f"verb: {first!r}; allowed: {', '.join(verbs)}")
        sys.exit(2)
    sys.exit(guarded(lambda: verbs[verb](rest, debug), debug))


def guarded(action: Callable[[], int], debug: bool) -> int:
    """Return an action's exit code; failures become one clear line and the code they stand for."""
    from fl_app.data import DataError
    from fl_app.report.run_folder import ReportError

    try:
        return action()
    except (ConfigError, DataError, ReportError) as error:
        code, text = 2, str(error)
    except RunError as error:
        code, text = 1, str(error)
    except KeyboardInterrupt:
        code, text = 1, "interrupted"
    except Exception as error:
        code, text = 1, f"{type(error).__name__}: {error}"
    if debug:
        traceback.print_exc()
    _complain(text)
    return code


def _complain(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"fl-app: {text}"))


def _run(words: list[str], debug: bool) -> int:
    from fl_app.hydra_jobs import run_jobs

    _log_to_console()
    return run_jobs(words, debug)


def _evaluate(words: list[str], debug: bool) -> int:
    from fl_app.saved_run import evaluate_run

    if not words or "=" in words[0]:
        raise ConfigError("RUN", words[0] if words else None, "the folder of a finished run")
    outcome = evaluate_run(Path(words[0]), words[1:])
    print(
        f"test accuracy {outcome.accuracy:.4f}  test loss {outcome.loss:.4f}  "
        f"({outcome.num_records} records)"
    )
    return 0


def _report(words: list[str], debug: bool) -> int:
    from fl_app.report.html import write_report
    from fl_app.report.run_folder import read_run_folder

    if not words:
        raise ConfigError("RUN", None, "the folders of one or more runs")
    runs = [read_run_folder(word) for word in words]
    target = runs[0].path / "report.html" if len(runs) == 1 else Path.cwd() / "report.html"
    print(write_report(runs, target))
    return 0


def _list(words: list[str], debug: bool) -> int:
    from fl_app.config import find_conf
    from fl_app.data import DATASETS
    from fl_app.models import MODELS
    from fl_app.registry import METHODS

    conf = find_conf()
    kinds: dict[str, dict[str, str]] = {
        "strategies": _first_comments(conf / "strategy"),
        "data": dict(DATASETS),
        "models": dict(MODELS),
        "experiments": _first_comments(conf / "experiment"),
    }
    wanted = words or list(kinds)
    for kind in wanted:
        if kind not in kinds:
            raise ConfigError("list", kind, ", ".join(kinds))
    for kind in wanted:
        table = Table(title=kind, title_justify="left", box=None, show_header=False)
        for name, text in sorted(kinds[kind].items()):
            table.add_row(name, Text(text))
        Console(highlight=False).print(table)
    if not words or "strategies" in words:
        print("methods: " + "; ".join(f"{k}: {m.description}" for k, m in METHODS.items()))
    return 0


def _first_comments(folder: Path) -> dict[str, str]:
    """Return each YAML file's name and the first comment in it that is not for Hydra."""
    found = {}
    for file in sorted(folder.glob("*.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        comments = [line[1:].strip() for line in lines if line.startswith("# ")]
        texts = [comment for comment in comments if not comment.startswith("@package")]
        found[file.stem] = texts[0] if texts else ""
    return found


def _log_to_console() -> None:
    """Warnings go to the terminal in one line each; everything goes to the run's run.log."""

    class OneLine(logging.Formatter):
        def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
            return ""

        def format(self, record: logging.LogRecord) -> str:
            # A traceback cached by another handler must not be appended.
            record.exc_text = None
            text = super().format(record).strip()
            record.exc_text = None
            return text

    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


if __name__ == "__main__":
    main()
