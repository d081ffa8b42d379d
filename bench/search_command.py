"""A whole search by the command, beside its evaluations alone: landmine, 10 + 60 for each of 29.

The command runs from its start to the report with `engine.workers=2`, three times for each setting,
in wall time. The reference, in the same run, are the evaluations that it made: the same points in
the same order by a plain loop, in two processes of half the agents each, already started and with
the data read. What a search finds must be the same each time, and with one worker.

`--root FOLDER_WITH_LANDMINE` measures, two free cores, and writes
bench/results/search_command.json; --table prints the README's table.
"""

import argparse
import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "search_command.json"
TIMES, PROCESSES = 3, 2
COMMON = ["objective=landmine", "num_rounds=61", "seed=0"]
METHODS = {"mode sound": "strategy=dp_fts_de", "as published": "strategy=dp_fts_de_paper"}
# Platt scaling is the published objective; decision values take a fraction of its time.
SCORES = {"platt": "the published objective", "decision": "decision values"}
Queries = list[tuple[int, list[list[float]]]]


def run_command(words: list[str], workers: int) -> tuple[float, Queries, str]:
    """Run the command; return its seconds, the queries by agent, and a digest of all it found."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        program = "from fl_app.cli import main; main()"
        given = [*COMMON, *words, f"engine.workers={workers}", f"hydra.run.dir={run}"]
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", program, "run", *given],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        seconds = time.perf_counter() - begin
        assert (run / "report.html").exists()
        content = (run / "queries.jsonl").read_bytes()
    rows = [json.loads(line) for line in content.splitlines()]
    return (
        seconds,
        [(row["agent"], row["points"]) for row in rows],
        hashlib.sha256(content).hexdigest()[:16],
    )


_objective: Any = None


def _start(root: str, scores: str) -> None:
    global _objective
    from fl_app.objectives.landmine import Landmine
    from fl_app.objectives.settings import LandmineSettings
    from fl_app.one_thread import use_one_thread

    use_one_thread()
    chosen = LandmineSettings(name="landmine", root=root, scores=scores)  # type: ignore[arg-type]
    _objective = Landmine(chosen, 0)


def _evaluate(queries: Queries) -> int:
    trials: dict[int, int] = {}
    for agent, points in queries:
        for point in points:
            trial = trials[agent] = trials.get(agent, -1) + 1
            _objective.evaluate(agent, _objective.space.decode(point), trial)
    return sum(trials.values()) + len(trials)


def time_evaluations(root: str, scores: str, queries: Queries) -> tuple[float, int]:
    """Return the seconds, and the number, of the evaluations alone."""
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, initializer=_start, initargs=(root, scores)))
            for _ in range(PROCESSES)
        ]
        # Each process has started, read the data and evaluated once before the clock does.
        for pool in pools:
            pool.submit(_evaluate, [(0, queries[0][1][:1])]).result()
        begin = time.perf_counter()
        jobs = [
            pool.submit(_evaluate, [each for each in queries if each[0] % PROCESSES == number])
            for number, pool in enumerate(pools)
        ]
        count = sum(job.result() for job in jobs)
        return time.perf_counter() - begin, count


def measure(root: str) -> dict[str, Any]:
    """Run everything."""
    from fl_app.run_store import list_versions

    rows = []
    for scores in SCORES:
        for method, strategy in METHODS.items():
            words = [strategy, f"objective.scores={scores}", f"objective.root={root}"]
            seconds, alone, digests = [], [], set()
            for _ in range(TIMES):
                spent, queries, digest = run_command(words, PROCESSES)
                seconds.append(spent)
                digests.add(digest)
                evaluations, count = time_evaluations(root, scores, queries)
                alone.append(evaluations)
            if scores == "decision":
                digests.add(run_command(words, 1)[2])
            if len(digests) > 1:
                raise RuntimeError(f"{method}, {scores}: not the same each time")
            rows.append(
                {
                    "method": method,
                    "scores": scores,
                    "num_evaluations": count,
                    "seconds": [round(each, 2) for each in seconds],
                    "evaluations_alone_seconds": [round(each, 2) for each in alone],
                    "digest": digest,
                }
            )
            print(rows[-1], flush=True)
    return {
        "format_version": 1,
        "command": "python bench/search_command.py --root=FOLDER_WITH_LANDMINE",
        "seeds": [0],
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "rows": rows,
    }


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table."""
    print("| | the command | its evaluations alone | ratio |")
    print("|---|---:|---:|---:|")
    for row in results["rows"]:
        whole, alone = row["seconds"], row["evaluations_alone_seconds"]
        ratio = statistics.median(a / b for a, b in zip(whole, alone, strict=True))
        cells = " | ".join(map(_seconds, (whole, alone)))
        print(f"| {row['method']}, {SCORES[row['scores']]} | {cells} | {ratio:.2f} |")


def _seconds(found: Iterable[float]) -> str:
    each = sorted(found)
    return f"{statistics.median(each):.1f} s ({each[0]:.1f} to {each[-1]:.1f})"


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with LandmineData.mat: measure")
    parser.add_argument("--table", action="store_true", help="print the README's table")
    arguments = parser.parse_args()
    if arguments.root:
        results = measure(str(Path(arguments.root).absolute()))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.table:
        print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
