"""Runs of which each is added to a file of results as it ends, so that a bench can go on later."""

import argparse
import datetime
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Results = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ResumableBench:
    """One of this folder's programs on MNIST.

    `keys` name a run among the others, "seed" the last of them; `list_jobs` gives their values and
    the overrides for each run. `describe` takes what a run leaves from its summary and its metrics;
    `judge`, what all of them come to.
    """

    file: Path
    keys: tuple[str, ...]
    seeds: list[int]
    list_jobs: Callable[[], Iterable[tuple[Any, ...]]]
    describe: Callable[[dict[str, Any], Rows], dict[str, Any]]
    print_table: Callable[[Results], None]
    plot: Callable[[Results], None]
    judge: Callable[[Rows], dict[str, Any]] = lambda runs: {}

    def main(self, text: str | None) -> None:
        """Compute, print or draw, as the command line says."""
        parser = argparse.ArgumentParser(description=text)
        parser.add_argument("--root", help="folder with MNIST's files: compute what is missing")
        parser.add_argument("--table", action="store_true", help="print the README's tables")
        parser.add_argument("--plot", action="store_true", help="draw into docs/plots")
        arguments = parser.parse_args()
        if arguments.root:
            logging.disable(logging.CRITICAL)
            self.measure(arguments.root)
        if arguments.table:
            self.print_table(self.read_results())
        if arguments.plot:
            self.plot(self.read_results())

    def measure(self, root: str) -> None:
        """Compute the runs that are missing."""
        from single_run import run_once

        results = self.read_results()
        done = {tuple(run[key] for key in self.keys) for run in results["runs"]}
        for *place, overrides in self.list_jobs():
            if tuple(place) in done:
                continue
            begin = time.perf_counter()
            # Digits come with scikit-learn.
            rooted = [] if "data=digits" in overrides else [f"data.root={root}"]
            summary, metrics = run_once([*overrides, *rooted])
            run = {
                **dict(zip(self.keys, place, strict=True)),
                "overrides": overrides,
                "seconds": round(time.perf_counter() - begin, 1),
                **self.describe(summary, metrics),
            }
            # Another process may have added its own by now.
            results = self.read_results()
            results["runs"].append(run)
            results |= {"versions": summary["versions"], "date": datetime.date.today().isoformat()}
            self.file.parent.mkdir(exist_ok=True)
            whole = {**results, **self.judge(results["runs"])}
            self.file.write_text(json.dumps(whole, indent=1) + "\n")
            print(*place, run["seconds"], summary["test_accuracy"], flush=True)

    def read_results(self) -> Results:
        """Return the results so far."""
        if self.file.exists():
            return dict(json.loads(self.file.read_text()))
        return {
            "format_version": 1,
            "command": f"python bench/{self.file.stem}.py --root=FOLDER_WITH_MNIST",
            "seeds": self.seeds,
            "runs": [],
        }
