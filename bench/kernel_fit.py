"""A fit of an agent's own process beside scikit-learn's, on the observations of a whole search.

The reference is scikit-learn's GaussianProcessRegressor with the same kernel and bounds and six
starts. Times are processor time on one thread; likelihoods are compared, too, in nats.

`--root FOLDER_WITH_LANDMINE` measures and writes bench/results/kernel_fit.json; --table prints it.
"""

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from strategies.dp_fts_de.algorithm import Floats
from strategies.dp_fts_de.own_process import standardize
from strategies.mechanisms.marginal_likelihood import (
    fit_gaussian_process,
    log_marginal_likelihood,
)

RESULTS = Path(__file__).parent / "results" / "kernel_fit.json"
SIZES = (10, 40, 65)


def time_reference(found: list[tuple[Floats, Floats]]) -> dict[str, Any]:
    """Time our fit and scikit-learn's on the same observations; compare the likelihoods."""
    ours: dict[int, float] = {}
    ratios: dict[int, float] = {}
    gains: list[float] = []
    for n in SIZES:
        seconds: list[tuple[float, float]] = []
        for points, values in found[::3]:
            x, y = points[:n], standardize(values[:n])
            begin = time.process_time()
            process = fit_gaussian_process(x, y)
            middle = time.process_time()
            best = _fit_reference(x, y)
            seconds.append((middle - begin, time.process_time() - middle))
            value, _ = log_marginal_likelihood(
                process.kernel, process.noise_variance, process.points, process.residuals
            )
            gains.append(value - best)
        ours[n] = statistics.median(each[0] for each in seconds)
        ratios[n] = ours[n] / statistics.median(each[1] for each in seconds)
    return {
        "milliseconds": {n: round(1e3 * each, 3) for n, each in ours.items()},
        "ratio_to_scikit_learn": {n: round(each, 4) for n, each in ratios.items()},
        "log_likelihood_over_scikit_learn": {
            "least": round(min(gains), 5),
            "median": round(statistics.median(gains), 5),
        },
    }


def _fit_reference(x: Floats, y: Floats) -> float:
    import warnings

    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (0.05, 20.0)) * RBF(0.3, (0.02, 5.0)) + WhiteKernel(
        1e-3, (1e-6, 1.0)
    )
    model = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(model.fit(x, y).log_marginal_likelihood_value_)


def measure(root: str) -> dict[str, Any]:
    """Run everything."""
    from search_step import run_search

    from fl_app.run_store import list_versions

    found = run_search("sound", root, "decision", 2)
    return {
        "format_version": 1,
        "command": "python bench/kernel_fit.py --root=FOLDER_WITH_LANDMINE",
        "seeds": [0],
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        **time_reference(found["observed"]),
    }


def print_table(results: dict[str, Any]) -> None:
    """Print the table."""
    print("| observations | milliseconds of a fit | over scikit-learn's |")
    print("|---:|---:|---:|")
    for size, spent in results["milliseconds"].items():
        print(f"| {size} | {spent:.2f} | {results['ratio_to_scikit_learn'][size]:.3f} |")
    gains = results["log_likelihood_over_scikit_learn"]
    print()
    print(
        f"Log likelihood over scikit-learn's: at least {gains['least']:+.5f} nats, "
        f"median {gains['median']:+.5f}."
    )


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with LandmineData.mat: measure")
    parser.add_argument("--table", action="store_true", help="print the table")
    arguments = parser.parse_args()
    if arguments.root:
        results = measure(arguments.root)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.table:
        print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
