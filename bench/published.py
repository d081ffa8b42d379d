"""The published table of DP-FedPaq beside ours: seven runs over five seeds, and the series E = r.

`--root FOLDER_WITH_MNIST` computes the runs that bench/results/published.json lacks and adds each
to it as it ends, then judges them; --table prints the README's table, --plot draws docs/plots.
"""

import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "published.json"
PLOTS = Path(__file__).parents[1] / "docs" / "plots"
PREFIX = "experiment=dp_fedpaq_mnist_"
SEEDS = list(range(5))
EPOCHS = (100, 300, 500, 1000)
# Name: title, E.
ROWS = {
    "e1_r10": ("E = 1, r = 10", 1),
    "e10_r10": ("E = 10, r = 10", 10),
    "e100_r10": ("E = 100, r = 10", 100),
    "e10_r1": ("E = 10, r = 1", 10),
    "e10_r100": ("E = 10, r = 100", 10),
    "e10_r10_s1": ("E = 10, r = 10, s = 1", 10),
    "e10_r10_s10": ("E = 10, r = 10, s = 10", 10),
}
LONGEST = "e10_r100"
# Rows whose means must be within .01 of the accuracy and 3% of each loss; of the others, which
# scatter more, the published value must lie within three standard deviations of a single run.
TIGHT = ("e1_r10", "e10_r10", "e10_r100", "e10_r10_s10")
ACCURACY_TOLERANCE, LOSS_TOLERANCE, DEVIATIONS = 0.01, 0.03, 3
# The first does better than the second, for every seed. The last loss of a run with r = 1 is that
# of a model which one client has just trained: it scatters more than it differs.
ORDER = (
    *(("e1_r10", "e10_r10", "loss"), ("e10_r10", "e100_r10", "loss")),
    ("e10_r10_s10", "e10_r10_s1", "loss"),
    *(("e10_r10", "e10_r1", "accuracy"), ("e10_r100", "e10_r1", "accuracy")),
    *(("e10_r10", "e10_r1", "loss"), ("e10_r100", "e10_r1", "loss")),
)
SCATTERS = "e10_r1"
SERIES = (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)


def list_jobs() -> list[tuple[str, int, list[str]]]:
    """Return a name, a seed and overrides for each run, the longest of the table last in it."""
    table = [(name, seed, [PREFIX + name, f"seed={seed}"]) for seed in SEEDS for name in ROWS]
    table.sort(key=lambda job: job[0] == LONGEST)
    series = [f"{PREFIX}local_steps"]
    return table + [
        (f"local_steps_{epochs}", 0, [*series, f"strategy.local_epochs={epochs}", "seed=0"])
        for epochs in SERIES
    ]


def describe(summary: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept of a run."""
    keys = ("test_accuracy", "model_sha256", "uplink_bits_per_parameter", "published")
    losses = {str(row["round"]): row["global_train_loss"] for row in metrics}
    known = {at: loss for at, loss in losses.items() if loss is not None}
    return {**{key: summary[key] for key in keys}, "global_train_loss": known}


def judge(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the runs come to."""
    return {"rows": judge_rows(runs), "order": judge_order(runs)}


def judge_rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the means over the seeds with the published values."""
    return [
        judge_row(name, mine)
        for name in ROWS
        if len(mine := [run for run in runs if run["name"] == name]) > 1
    ]


def judge_row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Judge each published value of a row."""
    quantities = []
    for each in zip(*(run["published"] for run in runs), strict=True):
        ours = [one["ours"] for one in each]
        mean, deviation = statistics.mean(ours), statistics.stdev(ours)
        published, is_loss = each[0]["published"], each[0]["quantity"] == "global_train_loss"
        allowed = LOSS_TOLERANCE * published if is_loss else ACCURACY_TOLERANCE
        if name not in TIGHT:
            allowed = DEVIATIONS * deviation
        quantities.append(
            {
                "quantity": each[0]["quantity"],
                "epochs": each[0]["round"] * ROWS[name][1],
                "published": published,
                "mean": mean,
                "standard_deviation": deviation,
                "allowed": allowed,
                "met": abs(mean - published) <= allowed,
            }
        )
    return {"name": name, "seeds": [run["seed"] for run in runs], "quantities": quantities}


def judge_order(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say for every seed whether the runs end in the published order."""
    final = {
        (run["name"], run["seed"]): {
            "loss": list(run["global_train_loss"].values())[-1],
            "accuracy": -run["test_accuracy"],
        }
        for run in runs
    }
    found = []
    for better, worse, quantity in ORDER:
        seeds = [seed for seed in SEEDS if {(better, seed), (worse, seed)} <= set(final)]
        met = [final[better, seed][quantity] < final[worse, seed][quantity] for seed in seeds]
        found.append({"better": better, "worse": worse, "by": quantity, "seeds": seeds, "met": met})
    return found


def print_table(results: dict[str, Any]) -> None:
    """Print the README's tables."""
    heads = "".join(f" loss at {epochs} |" for epochs in EPOCHS)
    print(f"| run |{heads} test accuracy |")
    print("|---|" + "---|" * (len(EPOCHS) + 1))
    for row in results["rows"]:
        cells = [write_cell(each) for each in row["quantities"]]
        print(f"| {ROWS[row['name']][0]} | {' | '.join(cells)} |")
    print("\n| better | worse | by final | seeds of which it holds |\n|---|---|---|---|")
    for each in results["order"]:
        names = f"{ROWS[each['better']][0]} | {ROWS[each['worse']][0]}"
        print(f"| {names} | {each['by']} | {sum(each['met'])} of {len(each['met'])} |")
    series = list_series(results)
    if series:
        print("\n| E = r |" + "".join(f" {epochs} |" for epochs, _, _ in series))
        print("|---|" + "---|" * len(series))
        print("| ours |" + "".join(f" {ours:.3f} |" for _, ours, _ in series))
        print("| published |" + "".join(f" {theirs:.3f} |" for _, _, theirs in series))


def write_cell(quantity: dict[str, Any]) -> str:
    """Write a mean with its deviation, and the published value in brackets."""
    mark = "" if quantity["met"] else " **"
    ours = f"{quantity['mean']:.3f} ± {quantity['standard_deviation']:.3f}"
    return f"{ours} ({quantity['published']:.3f}){mark}"


def list_series(results: dict[str, Any]) -> list[tuple[int, float, float]]:
    """Return E, our final loss and the published one of the series' runs."""
    finals = [run["published"][0] for run in results["runs"] if "local_steps" in run["name"]]
    return [
        (epochs, final["ours"], final["published"])
        for epochs, final in zip(SERIES, finals, strict=False)
    ]


def plot(results: dict[str, Any]) -> None:
    """Draw the losses of the rows, and the series."""
    from fl_app.report.charts import Chart, Curve
    from fl_app.report.plots import write_png

    PLOTS.mkdir(parents=True, exist_ok=True)
    rows = {row["name"]: row["quantities"] for row in results["rows"]}
    y_label = "Loss on all training records"
    groups = {
        "published_local_epochs": ("e1_r10", "e10_r10", "e100_r10"),
        "published_clients": ("e10_r1", "e10_r10", "e10_r100"),
        "published_levels": ("e10_r10", "e10_r10_s10", "e10_r10_s1"),
    }
    for file, names in groups.items():
        curves = []
        for place, name in enumerate(names):
            title, epochs = ROWS[name]
            courses = [r["global_train_loss"] for r in results["runs"] if r["name"] == name]
            x = [int(at) for at in courses[0] if int(at)]
            y = [statistics.mean(course[str(at)] for course in courses) for at in x]
            curves.append(Curve(place, title, [float(at * epochs) for at in x], y))
            losses = [q for q in rows[name] if q["quantity"] == "global_train_loss"]
            points = [float(q["epochs"]) for q in losses], [q["published"] for q in losses]
            curves.append(Curve(place, f"{title}, published", *points, points=True))
        title = "MNIST, two digits a client: mean of five seeds"
        write_png(Chart(file, title, "Epochs so far (K E)", y_label, curves), PLOTS / f"{file}.png")
    series = list_series(results)
    x = [float(epochs) for epochs, _, _ in series]
    curves = [
        Curve(0, "ours", x, [ours for _, ours, _ in series]),
        Curve(0, "published", x, [theirs for _, _, theirs in series], points=True),
    ]
    chart = Chart("series", "1,000 uploads, s = 10", "E = r", f"Final {y_label.lower()}", curves)
    write_png(chart, PLOTS / "published_local_steps.png")


def main() -> None:
    """Compute, print or draw."""
    from resumable_bench import ResumableBench

    keys = ("name", "seed")
    bench = ResumableBench(RESULTS, keys, SEEDS, list_jobs, describe, print_table, plot, judge)
    bench.main(__doc__)


if __name__ == "__main__":
    main()
