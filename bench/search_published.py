"""Landmine detection as published: DP-FTS-DE, what it is made of, and the controls.

29 agents, 10 + 60 evaluations, the published settings (mode paper), mean over agents of 1 - the
best area under the curve so far after iteration 60, beside the published figures (10 runs, their
standard error .005), and the paired difference from Thompson sampling over our seeds. The controls
that the paper lacks: random vectors of the same norm in place of what is released; own
sub-regions for the initial points and nothing shared; and the plain average of all agents' vectors.
"Own process as here" is Thompson sampling with a process of centred, scaled values, refitted after
each observation, as in mode sound.

`--root FOLDER_WITH_LANDMINE` computes the runs that bench/results/search_published.json lacks and
adds each to it as it ends (--part I/N shares the work); --table prints the README's table.
"""

import statistics
from pathlib import Path
from typing import Any

if __package__:
    from bench.search_sharing import interval
else:
    from search_sharing import interval

RESULTS = Path(__file__).parent / "results" / "search_published.json"
SEEDS = list(range(10))
ITERATIONS = (0, 1, 6, 11, 21, 31, 41, 51, 60)
SETTING = ["objective=landmine", "objective.scores=platt", "num_rounds=61"]
PAPER = "strategy=dp_fts_de_paper"
ALONE = ["strategy.control=no_sharing", "strategy.num_subregions=1", "strategy.initial=everywhere"]
BASE = "Thompson sampling"


def _private(sample_rate: float, noise_multiplier: float) -> list[str]:
    rate, noise = f"strategy.sample_rate={sample_rate}", f"noise_multiplier={noise_multiplier}"
    return [PAPER, rate, f"strategy.{noise}"]


# Overrides, the published figure and the published epsilon.
ROWS: dict[str, tuple[list[str], float | None]] = {
    BASE: ([PAPER, *ALONE], 0.2375),
    "FTS": (["strategy=fts"], 0.2346),
    "FTS-DE": (["strategy=fts_de"], 0.2314),
    "DP-FTS-DE, q = .35, z = 1": (_private(0.35, 1.0), 0.2319),
    "q = .35, z = 1.6": (_private(0.35, 1.6), 0.2327),
    "q = .35, z = 2": (_private(0.35, 2.0), 0.2332),
    "q = .35, z = 3": (_private(0.35, 3.0), 0.2358),
    "q = .35, z = 4": (_private(0.35, 4.0), 0.2373),
    "q = .10, z = 1": (_private(0.10, 1.0), 0.2376),
    "q = .15, z = 1": (_private(0.15, 1.0), 0.2373),
    "q = .20, z = 1": (_private(0.20, 1.0), 0.2336),
    "q = .25, z = 1": (_private(0.25, 1.0), 0.2349),
    "random vectors": ([*_private(0.35, 1.0), "strategy.control=random"], None),
    "own sub-regions, nothing shared": ([PAPER, "strategy.control=no_sharing"], None),
    "plain average of all": ([PAPER, "strategy.control=oracle"], None),
    "Thompson sampling, own process as here": (["strategy=thompson_sampling"], None),
}


def list_jobs() -> list[tuple[str, int, list[str]]]:
    """Return row, seed and overrides for each run, all rows of a seed together."""
    return [
        (name, seed, [*overrides, *SETTING, f"seed={seed}"])
        for seed in SEEDS
        for name, (overrides, _) in ROWS.items()
    ]


def describe(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run: 1 - the best value so far, after some of the iterations."""
    rows = {row["round"] - 1: row for row in metrics}
    curve = {str(t): round(1.0 - rows[t]["best_value_mean"], 6) for t in ITERATIONS}
    return {"error": curve, "epsilon": summary["epsilon"]}


def print_table(results: dict[str, Any]) -> None:
    """Print the README's table."""
    found = {(run["row"], run["seed"]): run for run in results["runs"]}
    print("| | epsilon | published | ours | less Thompson sampling (95%) | seeds |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (_, published) in ROWS.items():
        seeds = [seed for seed in SEEDS if (name, seed) in found and (BASE, seed) in found]
        if len(seeds) < 2:
            continue
        last = str(ITERATIONS[-1])
        ours = [found[name, seed]["error"][last] for seed in seeds]
        mean, half = interval(
            [found[name, seed]["error"][last] - found[BASE, seed]["error"][last] for seed in seeds]
        )
        spent = found[name, seeds[0]]["epsilon"]
        cells = [
            "" if not spent else f"{spent:.2f}",
            "" if published is None else f"{published:.4f}",
            f"{statistics.mean(ours):.4f}",
            "" if name == BASE else f"{mean:+.4f} ± {half:.4f}",
        ]
        print(f"| {name} | " + " | ".join(cells) + f" | {len(seeds)} |")


def main() -> None:
    """Compute or print."""
    from resumable_bench import ResumableBench

    ResumableBench(
        file=RESULTS,
        keys=("row", "seed"),
        seeds=SEEDS,
        list_jobs=list_jobs,
        describe=describe,
        print_table=print_table,
        plot=lambda results: None,
        root_key="objective.root",
        root_of="landmine",
        rooted=lambda overrides: True,
    ).main(__doc__)


if __name__ == "__main__":
    main()
