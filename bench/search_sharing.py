"""What sharing is worth: DP-FTS-DE beside Thompson sampling and its controls, paired by seed.

Each task is searched by Thompson sampling (nobody sends anything), by DP-FTS-DE (mode sound) and by
random vectors of the same norm in place of what was released; those that are to show a gain also by
the oracle (the plain average of all agents' vectors, no noise). The others, where agents have less
in common or the kernel is not theirs, are to show that little is lost: the lower end of the
interval above minus .01 of the objective's range, fixed before the runs. As the range of areas and
accuracies 1 was fixed; what they span over the search space (search_ranges.py), which is less, took
its place after the runs. The seed decides initial
points, draws and noise; of synthetic tasks the functions, too. Landmine, har-geotec and the writers
are one data set each: their intervals are over seeds, for these agents. Numbers of seeds were fixed
before the runs: 40, and 120 for landmine up to t = 10, where the differences are small. Of 200
agents, random vectors and the oracle end at t = 20; that the others go on to 60 was decided when
their runs to 20 were known. Runs were made on two kinds of processor, between which last digits
differ, and with them, after some queries, where a search with the same seed goes.

Compared is the best value so far (of tasks whose optimum is known, the simple regret), mean over
the agents, one number a seed: intervals are those of the seeds' differences, so agents of one seed
need not be independent. Each is a 95% interval by itself, of the many in the table.

`--root FOLDER` (with landmine/, mnist/, qmnist-writer-labels/ and har-geotec/ in it) computes the
runs that bench/results/search_sharing.json lacks and adds each to it as it ends (--part I/N shares
the work, --only TASK takes the tasks whose names begin so, --without METHOD leaves one for later);
--table prints the README's table.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "search_sharing.json"
RANGES = RESULTS.with_name("search_ranges.json")
# Not those that the defaults were chosen with.
SEEDS = list(range(1000, 1040))
# More of them for the first iterations only, whose runs are short.
EARLY_SEEDS = list(range(1040, 1120))
LAST_EARLY = 10
ITERATIONS = (0, 1, 2, 5, 10, 20, 30, 60)
SYNTHETIC = ["objective=synthetic", "objective.dimension=2", "strategy.target_epsilon=2"]
LONG, SHORT, EARLY = "num_rounds=61", "num_rounds=21", "num_rounds=11"
MANY = "objective.num_agents=200"
LANDMINE = ["objective=landmine", "objective.root={root}/landmine"]
TASKS: dict[str, list[str]] = {
    "landmine, epsilon 2": [*LANDMINE, "strategy.target_epsilon=2", LONG],
    "landmine, epsilon 5": [*LANDMINE, "strategy.target_epsilon=5", LONG],
    "30 agents, deviation .3": [*SYNTHETIC, LONG],
    "30 agents, deviation 1": [*SYNTHETIC, "objective.deviation=1", LONG],
    "200 agents, deviation .3": [*SYNTHETIC, MANY, LONG],
    "200 agents, deviation 1": [*SYNTHETIC, MANY, "objective.deviation=1", LONG],
    "30 agents, unrelated": [*SYNTHETIC, "objective.deviation=100", LONG],
    "landmine, log axes, epsilon 2": [
        *(*LANDMINE, "objective.axes=log", "strategy.target_epsilon=2", LONG),
    ],
    "30 agents, Matern, deviation .3": [*SYNTHETIC, "objective.family=matern", LONG],
    "30 agents, non-stationary, deviation .3": [
        *(*SYNTHETIC, "objective.family=non_stationary", LONG),
    ],
    "30 agents, 1-D, deviation .3": [*SYNTHETIC, "objective.dimension=1", LONG],
    "har-geotec, 23 people": [
        *("objective=local_training", "data=har_geotec", "data.root={root}/har-geotec"),
        *("data.stride=128", "objective.holdout=last", "strategy.target_epsilon=2", LONG),
    ],
    "MNIST, 50 writers": [
        *("objective=local_training", "data=mnist_writers", "data.root={root}/mnist"),
        *("data.writer_labels={root}/qmnist-writer-labels", "objective.num_agents=50"),
        *("strategy.target_epsilon=2", LONG),
    ],
}
# What may be lost, as a share of the objective's range.
MARGIN = 0.01
OURS, ALONE, RANDOM, ORACLE = "DP-FTS-DE", "Thompson sampling", "random vectors", "oracle"
METHODS: dict[str, list[str]] = {
    ALONE: ["strategy=thompson_sampling"],
    OURS: ["strategy=dp_fts_de"],
    RANDOM: ["strategy=dp_fts_de", "strategy.control=random"],
    ORACLE: ["strategy=dp_fts_de", "strategy.control=oracle"],
}
SHOWN = (5, 10, 20, 60)
# What sharing could give at best; it judges nothing.
NUM_ORACLE = 10
# Seeds below which nothing is shown: the interval would say little.
FEWEST = 10


# What is not private is the same whatever the epsilon.
SAME_AS = {"landmine, epsilon 5": "landmine, epsilon 2"}
WITH_EARLY_SEEDS = ("landmine, epsilon 2", "landmine, epsilon 5")
# The first tasks are to show a gain.
NUM_JUDGED = 6


def list_jobs(chosen: str = "", without: str = "") -> list[tuple[str, str, int, list[str]]]:
    """Return task, method, seed and overrides for each run of the tasks whose names begin so.

    All methods of a seed come together: whatever is there is paired.
    """
    jobs = []
    for place, (task, setting) in enumerate(TASKS.items()):
        early = EARLY_SEEDS if task in WITH_EARLY_SEEDS else []
        for seed in [*SEEDS, *early] if task.startswith(chosen) else []:
            for method, overrides in METHODS.items():
                # What is lost at the end is judged against Thompson sampling alone.
                is_short = MANY in setting and method in (RANDOM, ORACLE)
                last = EARLY if seed in early else SHORT if is_short else LONG
                length = [last if each == LONG else each for each in setting]
                if method == without or (method in (ALONE, ORACLE) and task in SAME_AS):
                    continue
                if method == ORACLE and (place >= NUM_JUDGED or seed not in SEEDS[:NUM_ORACLE]):
                    continue
                jobs.append((task, method, seed, [*overrides, *length, f"seed={seed}"]))
    return jobs


def describe(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run: the mean over the agents after some of the iterations."""
    # Iteration t is round t + 1.
    rows = {row["round"] - 1: row for row in metrics}
    at = [t for t in ITERATIONS if t in rows]
    return {
        "best_value": {str(t): round(rows[t]["best_value_mean"], 6) for t in at},
        "simple_regret": {
            str(t): round(rows[t]["simple_regret_mean"], 6)
            for t in at
            if rows[t]["simple_regret_mean"] is not None
        },
        "epsilon": summary["epsilon"],
        "noise_std": summary["noise_std"],
    }


def interval(differences: list[float]) -> tuple[float, float]:
    """Return the mean, and half its 95% interval by Student's t."""
    from scipy.stats import t

    count = len(differences)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    return statistics.mean(differences), half


def find_values(
    runs: list[dict[str, Any]], task: str, method: str, iteration: int
) -> tuple[dict[int, float], bool]:
    """Return by seed how well a method did after an iteration, and whether it is a regret."""
    task = SAME_AS.get(task, task) if method in (ALONE, ORACLE) else task
    found, is_regret = {}, False
    for run in runs:
        if (run["task"], run["method"]) == (task, method) and str(iteration) in run["best_value"]:
            regret = run["simple_regret"].get(str(iteration))
            is_regret = regret is not None
            found[run["seed"]] = regret if is_regret else run["best_value"][str(iteration)]
    return found, is_regret


def compare(
    runs: list[dict[str, Any]], task: str, other: str, iteration: int
) -> tuple[float, float, int] | None:
    """Return how much better DP-FTS-DE is than another: mean, half interval, seeds."""
    ours, is_regret = find_values(runs, task, OURS, iteration)
    theirs, _ = find_values(runs, task, other, iteration)
    sign = -1.0 if is_regret else 1.0
    pairs = [sign * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    return (*interval(pairs), len(pairs)) if len(pairs) >= FEWEST else None


def count_planned(task: str, other: str, iteration: int) -> int:
    """Return how many seeds a figure is to have."""
    if other == ORACLE:
        return NUM_ORACLE
    is_early = task in WITH_EARLY_SEEDS and iteration <= LAST_EARLY
    return len(SEEDS) + (len(EARLY_SEEDS) if is_early else 0)


def find_range(task: str) -> float:
    """Return the range of a task's objective, as `search_ranges` measured it."""
    ranges: dict[str, float] = json.loads(RANGES.read_text())["ranges"]
    return ranges[task]


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table, and what it lacks."""
    runs = results["runs"]
    shown = "".join(f" t = {t} |" for t in SHOWN)
    print(f"| task | less that of |{shown} lost less than {MARGIN:g} of the range | seeds |")
    print("|---|---|" + "---:|" * len(SHOWN) + "---|---:|")
    lacking = []
    for task in TASKS:
        rows = [_row(runs, task, other) for other in (ALONE, RANDOM, ORACLE)]
        if any(rows):
            print(_own_row(runs, task), *filter(None, rows), sep="\n")
        lacking += _list_lacking(runs, task)
    if lacking:
        print(
            f"\nPlanned, and not computed, or of fewer than {FEWEST} seeds: {'; '.join(lacking)}."
        )


def _list_lacking(runs: list[dict[str, Any]], task: str) -> list[str]:
    """Return what is not shown of a task, or of which comparison, and how many seeds there are."""
    found = []
    for other in (ALONE, RANDOM):
        ends = [t for t in SHOWN if t < 60 or not (other == RANDOM and MANY in TASKS[task])]
        missing = [t for t in ends if compare(runs, task, other, t) is None]
        if missing:
            ours, theirs = (find_values(runs, task, each, missing[-1])[0] for each in (OURS, other))
            count = len(ours.keys() & theirs.keys())
            at = "" if missing == ends else f" at t = {missing[-1]}"
            found.append(f"{task}, less {other}{at} ({count})")
    return found


def _own_row(runs: list[dict[str, Any]], task: str) -> str:
    """Return what Thompson sampling comes to by itself, as the scale of the differences."""
    cells, is_regret = [], False
    for t in SHOWN:
        values, found_regret = find_values(runs, task, ALONE, t)
        is_regret |= found_regret
        is_told = len(values) >= FEWEST
        cells.append(f"{statistics.mean(values.values()):.4f}" if is_told else "")
    what = "regret" if is_regret else "best value"
    return f"| {task} | *Thompson sampling's own {what}* | {' | '.join(cells)} |  |  |"


def _row(runs: list[dict[str, Any]], task: str, other: str) -> str | None:
    found = {t: compare(runs, task, other, t) for t in SHOWN}
    known = {t: each for t, each in found.items() if each is not None}
    if not known:
        return None
    cells = [f"{known[t][0]:+.4f} ± {known[t][1]:.4f}" if t in known else "" for t in SHOWN]
    kept = ""
    if other == ALONE:
        limit = MARGIN * find_range(task)
        told = ", ".join(
            f"{_judge(mean - half >= -limit, count == count_planned(task, other, t))} (t = {t})"
            for t, (mean, half, count) in known.items()
            if t >= 20
        )
        kept = f"{limit:.3f}: {told}"
    # Of the first and of the last iterations, if they differ.
    counts = {}
    for t in (min(known), max(known)):
        count, planned = known[t][2], count_planned(task, other, t)
        counts[str(count) if count == planned else f"{count} of {planned}"] = True
    return f"| {task} | {other} | {' | '.join(cells)} | {kept} | {', '.join(counts)} |"


def _judge(held: bool, is_complete: bool) -> str:
    """Return the verdict, which waits for all seeds."""
    return ("yes" if held else "no") if is_complete else "not judged yet"


def main() -> None:
    """Compute or print."""
    from resumable_bench import ResumableBench

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="", help="compute tasks whose names begin so")
    parser.add_argument("--without", default="", help="leave this method for another time")
    arguments, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]
    ResumableBench(
        file=RESULTS,
        keys=("task", "method", "seed"),
        seeds=SEEDS,
        list_jobs=lambda: list_jobs(arguments.only, arguments.without),
        describe=describe,
        print_table=print_table,
        plot=lambda results: None,
        root_of="data",
        rooted=lambda overrides: False,
    ).main(__doc__)


if __name__ == "__main__":
    main()
