"""Runs of which each is added to a file of results as it ends, so that a bench can go on later.

Several processes may share the work: ``--part 0/2`` and ``--part 1/2``.
"""

import argparse
import datetime
import fcntl
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

Results = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ResumableBench:
    """One of this folder's programs.

    `keys` name a run among the others, "seed" the last of them; `list_jobs` gives their values and
    the overrides for each run, in which {root} stands for `--root`; a run that was made with other
    overrides is made again. `describe` takes what a run leaves from its summary and its metrics;
    `judge`, what all of them come to. `root_key` is what `--root` stands for in the runs that
    `rooted` says: digits come with scikit-learn.
    """

    file: Path
    keys: tuple[str, ...]
    seeds: list[int]
    list_jobs: Callable[[], Iterable[tuple[Any, ...]]]
    describe: Callable[[dict[str, Any], Rows], dict[str, Any]]
    print_table: Callable[[Results], None]
    plot: Callable[[Results], None]
    judge: Callable[[Rows], dict[str, Any]] = lambda runs: {}
    root_key: str = "data.root"
    root_of: str = "MNIST"
    rooted: Callable[[list[str]], bool] = lambda overrides: "data=digits" not in overrides

    def main(self, text: str | None) -> None:
        """Compute, print or draw, as the command line says."""
        parser = argparse.ArgumentParser(description=text)
        root = f"folder with {self.root_of}'s files: compute what is missing"
        parser.add_argument("--root", help=root)
        parser.add_argument("--part", default="0/1", help="I/N: of N processes, the work of I")
        parser.add_argument("--table", action="store_true", help="print the README's tables")
        parser.add_argument("--plot", action="store_true", help="draw into docs/plots")
        arguments = parser.parse_args()
        if arguments.root:
            logging.disable(logging.CRITICAL)
            self.measure(arguments.root, *map(int, arguments.part.split("/")))
        if arguments.table:
            self.print_table(self.read_results())
        if arguments.plot:
            self.plot(self.read_results())

    def measure(self, root: str, part: int = 0, parts: int = 1) -> None:
        """Compute the runs that are missing, those of a part of all."""
        from single_run import run_once

        results = self.read_results()
        done = {(*self._place(run), *run["overrides"]) for run in results["runs"]}
        for number, (*place, overrides) in enumerate(self.list_jobs()):
            if (*place, *overrides) in done or number % parts != part:
                continue
            begin = time.perf_counter()
            rooted = [f"{self.root_key}={root}"] if self.rooted(overrides) else []
            words = [word.replace("{root}", root) for word in overrides]
            summary, metrics = run_once([*words, *rooted])
            run = {
                **dict(zip(self.keys, place, strict=True)),
                "overrides": overrides,
                "seconds": round(time.perf_counter() - begin, 1),
                "commit": read_commit(),
                **self.describe(summary, metrics),
            }
            self._add(run, summary["versions"])
            print(*place, run["seconds"], summary["test_accuracy"], flush=True)

    def _add(self, run: dict[str, Any], versions: dict[str, str]) -> None:
        """Add a run to the file, of which another process may have written more by now."""
        self.file.parent.mkdir(exist_ok=True)
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            results = self.read_results()
            place = self._place(run)
            results["runs"] = [each for each in results["runs"] if self._place(each) != place]
            results["runs"].append(run)
            results |= {"versions": versions, "date": datetime.date.today().isoformat()}
            whole = {**results, **self.judge(results["runs"])}
            temporary = self.file.with_suffix(".tmp")
            temporary.write_text(json.dumps(whole, indent=1) + "\n")
            os.replace(temporary, self.file)

    def _place(self, run: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(run[key] for key in self.keys)

    def read_results(self) -> Results:
        """Return the results so far."""
        if self.file.exists():
            return dict(json.loads(self.file.read_text()))
        folder = f"FOLDER_WITH_{self.root_of.upper()}"
        return {
            "format_version": 1,
            "command": f"python bench/{self.file.stem}.py --root={folder}",
            "seeds": self.seeds,
            "runs": [],
        }


@lru_cache(maxsize=1)
def read_commit() -> str | None:
    """Return the commit of the code that runs; None outside a repository."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
