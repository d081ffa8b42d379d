"""The range of each task of `search_sharing`: largest value less smallest over the search space.

Values without noise where there is any, at the same 400 random points for each agent (49 where a
value is a training or a cross-validation), the mean over the agents; of synthetic functions over
the first ten agents of three seeds.

`--root FOLDER` (as for search_sharing.py) writes bench/results/search_ranges.json; --table prints.
"""

import argparse
import datetime
import json
import statistics
from typing import Any

import numpy as np
from search_sharing import EARLY, LONG, MANY, RANGES, SEEDS, SHORT, TASKS

MANY_POINTS, FEW_POINTS = 400, 49
SYNTHETIC_SEEDS, SYNTHETIC_AGENTS = SEEDS[:3], 10


def measure_range(words: list[str]) -> float:
    """Return the range of an objective."""
    from fl_app.config import compose_settings
    from fl_app.run_inputs import fill_num_clients
    from fl_app.search_task import load_run_objective

    is_synthetic = words[0].endswith("=synthetic")
    found = []
    for seed in SYNTHETIC_SEEDS if is_synthetic else [0]:
        settings = fill_num_clients(
            compose_settings(["strategy=dp_fts_de", *words, f"seed={seed}"])
        )
        objective = load_run_objective(settings)
        count = MANY_POINTS if is_synthetic else FEW_POINTS
        points = np.random.default_rng(0).random((count, objective.space.dimension))
        agents = (
            min(objective.num_agents, SYNTHETIC_AGENTS) if is_synthetic else objective.num_agents
        )
        for agent in range(agents):
            if is_synthetic:
                values = objective.values(agent, points)
            else:
                decoded = [objective.space.decode(point) for point in points]
                values = np.array([objective.evaluate(agent, each, 0) for each in decoded])
            found.append(float(np.ptp(values)))
    return statistics.mean(found)


def describe_objective(words: list[str], root: str) -> list[str]:
    """Return the words that say what the values are, and nothing of the search."""
    lengths = (LONG, SHORT, EARLY)
    kept = [word for word in words if word not in lengths and "target_epsilon" not in word]
    # The first agents are the same, however many there are.
    return [word.replace("{root}", root) for word in kept if word != MANY]


def measure(root: str) -> dict[str, Any]:
    """Measure every task; those with the same objective once."""
    from fl_app.run_store import list_versions

    known: dict[tuple[str, ...], float] = {}
    ranges = {}
    for task, words in TASKS.items():
        words = describe_objective(words, root)
        key = tuple(words)
        if key not in known:
            known[key] = measure_range(words)
        ranges[task] = round(known[key], 4)
        print(task, ranges[task], flush=True)
    return {
        "format_version": 1,
        "command": "python bench/search_ranges.py --root=FOLDER_WITH_DATA",
        "seeds": SYNTHETIC_SEEDS,
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "ranges": ranges,
    }


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with the data: measure")
    parser.add_argument("--table", action="store_true", help="print the ranges")
    arguments = parser.parse_args()
    if arguments.root:
        RANGES.write_text(json.dumps(measure(arguments.root), indent=1) + "\n")
    if arguments.table:
        for task, found in json.loads(RANGES.read_text())["ranges"].items():
            print(f"{task}: {found:.4g}")


if __name__ == "__main__":
    main()
