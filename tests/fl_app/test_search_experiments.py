"""The files of searches: published rows of landmine detection, and ablations that are sweeps."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import io

from fl_app.conf_folder import find_conf
from fl_app.config import compose_settings, expand_sweep
from fl_app.objectives.landmine import FILE
from fl_app.search_task import planned_parameters
from fl_app.strategy_settings import SearchSettings
from strategies.mechanisms.accounting import compute_epsilon
from tests.conftest import SHARED_DATA
from tests.fl_app.test_landmine_objective import make_cells

LANDMINE, ABLATION = "dp_fts_de_landmine", "dp_fts_de_ablation"
# Table of the published experiments: q, z; 1 - best value after iteration 60; epsilon.
PRIVATE = {
    "": (0.35, 1.0, 0.2319, 15.17),
    "_z1_6": (0.35, 1.6, 0.2327, 7.12),
    "_z2": (0.35, 2.0, 0.2332, 5.14),
    "_z3": (0.35, 3.0, 0.2358, 3.05),
    "_z4": (0.35, 4.0, 0.2373, 2.16),
    "_q10": (0.10, 1.0, 0.2376, 3.75),
    "_q15": (0.15, 1.0, 0.2373, 5.98),
    "_q20": (0.20, 1.0, 0.2336, 7.69),
    "_q25": (0.25, 1.0, 0.2349, 9.82),
}
OTHERS = {"_ts": 0.2375, "_fts": 0.2346, "_fts_de": 0.2314}
CURVE = {
    0: 0.3152,
    1: 0.2961,
    6: 0.2710,
    11: 0.2579,
    21: 0.2483,
    31: 0.2449,
    41: 0.2421,
    51: 0.2393,
}
# Key -> values, the first of which the others are compared with; mode.
SWEEPS = {
    "clipping_norm": ("strategy.clipping_norm", [22.0, 5.5, 11.0, 44.0], "paper"),
    "num_features": ("strategy.num_random_features", [None, 4, 8, 40], "sound"),
    "subregions": ("strategy.num_subregions", [4, 1, 2, 8], "paper"),
    "prob_own": (
        "strategy.prob_own",
        ["one_minus_inverse", "one_minus_inverse_square", 0.5, 1.0],
        "paper",
    ),
    "sample_rate": ("strategy.sample_rate", [0.35, 0.1, 0.2, 1.0], "paper"),
    "noise": ("strategy.noise_multiplier", [1.0, 0.0, 2.0, 4.0], "paper"),
    "lengthscale": ("strategy.lengthscale", [0.25, 0.1, 0.5, 1.0], "sound"),
    "heterogeneity": ("objective.deviation", [0.0, 0.3, 1.0, 3.0], "sound"),
}
SEEDS = list(range(5))


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_app.report.plots.write_plots", lambda run, folder: [])
    monkeypatch.setattr("fl_app.report.html.write_report", lambda run, path: path)


def searched(made: Any) -> SearchSettings:
    assert made.search is not None
    return made.search


def test_there_is_a_file_for_each_row_and_ablation() -> None:
    files = {path.stem for path in (find_conf() / "experiment").glob("dp_fts_de_*.yaml")}
    rows = {LANDMINE + name for name in (*PRIVATE, *OTHERS)}
    assert files == rows | {ABLATION} | {f"{ABLATION}_{name}" for name in SWEEPS}


@pytest.mark.parametrize("name", [*PRIVATE, *OTHERS])
def test_a_row_is_set_as_it_was_published(name: str) -> None:
    made = compose_settings([f"experiment={LANDMINE}{name}"])
    chosen, base = searched(made), searched(compose_settings(["strategy=dp_fts_de_paper"]))
    assert dataclasses.asdict(made.objective) == {
        **{"name": "landmine", "root": None, "axes": "linear", "scores": "platt"},
    }
    assert made.rounds == 61
    # The settings of the spec, whatever the row.
    kept = ("mode", "features", "lengthscale", "regularizer", "num_initial", "standardize")
    kept += ("num_random_features", "prob_own", "use_broadcast", "release_rounds", "prior_mean")
    assert [getattr(chosen, key) for key in kept] == [getattr(base, key) for key in kept]
    assert [getattr(chosen, key) for key in kept[:5]] == ["paper", "rff", 0.01, 1e-6, 10]
    published = dict(zip(made.published.iterations, made.published.search_error, strict=True))
    if name in PRIVATE:
        rate, noise, error, _ = PRIVATE[name]
        assert (chosen.sample_rate, chosen.noise_multiplier) == (rate, noise)
        assert (chosen.clipping_norm, chosen.num_subregions, chosen.initial) == (22.0, 4, "own_box")
        assert published == {60: error}
        assert chosen.control == "none"
        return
    assert published == {**(CURVE if name == "_ts" else {}), 60: OTHERS[name]}
    assert chosen.control == ("no_sharing" if name == "_ts" else "none")
    wanted = (4, "own_box") if name == "_fts_de" else (1, "everywhere")
    assert (chosen.num_subregions, chosen.initial) == wanted
    if name != "_ts":
        assert (chosen.noise_multiplier, chosen.clipping_norm, chosen.sample_rate) == (0, None, 1)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_row_spends_what_was_published(name: str) -> None:
    """By the moments accountant at delta = 29^-1.1, within .01; arXiv 2110.14153, table 1."""
    made = compose_settings([f"experiment={LANDMINE}{name}", "num_clients=29"])
    parameters = planned_parameters(made)
    assert parameters.noise_multiplier is not None
    releases = parameters.describe_releases(
        parameters.num_planned(made.rounds), float(parameters.noise_multiplier)
    )
    assert releases.num_releases == 60
    found = compute_epsilon(releases, 29**-1.1, "moments")
    assert found == pytest.approx(PRIVATE[name][3], abs=0.01)


def test_rows_have_names_of_their_own_by_which_each_is_paired_with_the_first() -> None:
    made = [compose_settings([f"experiment={LANDMINE}{name}"]) for name in (*PRIVATE, *OTHERS)]
    assert len({each.strategy.label or each.strategy.name for each in made}) == len(made)


@pytest.mark.parametrize("name", SWEEPS)
def test_an_ablation_sweeps_one_key_over_the_same_seeds(name: str) -> None:
    key, values, mode = SWEEPS[name]
    group, _, field = key.partition(".")
    words = expand_sweep([f"experiment={ABLATION}_{name}"])
    seeds = [word for job in words for word in job if word.startswith("seed=")]
    # Composing takes its time: the jobs of one seed, which the others repeat.
    rest = [sorted(word for word in job if not word.startswith("seed=")) for job in words]
    first = [job for job in words if "seed=0" in job]
    assert sorted(set(seeds)) == [f"seed={seed}" for seed in SEEDS]
    assert all(rest.count(each) == len(SEEDS) for each in rest)
    jobs = [compose_settings(job) for job in first]
    assert len(words) == len(SEEDS) * len(jobs)
    controls = ["none", "no_sharing"] if group == "objective" else ["none"]
    found = [(getattr(getattr(made, group), field), searched(made).control) for made in jobs]
    assert found == [(value, control) for value in values for control in controls]
    # Everything else is the same, and what the strategy's file says.
    usual = searched(compose_settings([f"strategy=dp_fts_de{'_paper' * (mode == 'paper')}"]))
    for made in jobs:
        chosen = dataclasses.replace(searched(made), control="none")
        if group == "strategy":
            chosen = dataclasses.replace(chosen, **{field: getattr(usual, field)})
        assert chosen == usual
        assert (made.rounds, made.num_clients) == (31, None)
        assert made.objective is not None
        assert (made.objective.name, made.objective.space().dimension) == ("synthetic", 2)
        # It can be planned, with its features.
        planned_parameters(dataclasses.replace(made, num_clients=30))
    if group == "strategy":
        assert getattr(usual, field) == values[0]


def test_an_ablation_runs_by_its_name_and_ends_with_paired_differences(fl_app: Any) -> None:
    ended = fl_app(
        *("run", "-m", f"experiment={ABLATION}_noise", "hydra.sweep.dir=sweep"),
        *("strategy.noise_multiplier=1.0,4.0", "seed=0,1", "num_rounds=4"),
        *("objective.num_agents=4", "strategy.num_random_features=20", "strategy.num_initial=3"),
    )
    assert ended.code == 0, ended.errors
    jobs = re.findall(r"(?m)^ +(\d) +([01]) +(1.0|4.0) +\S", ended.output)
    assert jobs == [("0", "0", "1.0"), ("1", "0", "4.0"), ("2", "1", "1.0"), ("3", "1", "4.0")]
    # Iteration 3; the pairs are 4 agents with 2 seeds.
    pair = r"noise_multiplier=1.0 +noise_multiplier=4.0 +3 .* 8 +2 +\S+ %"
    assert len(re.findall(pair, ended.output)) == 1


def test_a_search_stands_beside_what_was_published_with_the_mean_over_seeds(
    fl_app: Any, tmp_path: Path
) -> None:
    """Four fields of the same form in the place of the published 29; the two rows are paired."""
    io.savemat(tmp_path / FILE, make_cells(4))
    words = (
        *("objective.root=.", "objective.scores=decision", "strategy.num_random_features=20"),
        *("strategy.num_initial=3", "num_rounds=7"),
    )
    ended = fl_app(
        *("run", "-m", f"experiment={LANDMINE}_ts,{LANDMINE}_z2", "seed=0,1", *words),
        "hydra.sweep.dir=sweep",
    )
    assert ended.code == 0, ended.errors
    rows = [line for line in ended.output.splitlines() if "1 − best value" in line]
    # After 6 iterations there are three of the curve's values, and no last one of either row.
    pattern = r"^ *(0–1|2–3) .*agents +(\d+) +(\S+) +(\S+) +(.*\S)"
    found = [re.findall(pattern, row)[0] for row in rows]
    reached = {t: error for t, error in CURVE.items() if t <= 6}
    assert [each[:3] for each in found] == [
        ("0–1", str(t + 1), f"{error:.4f}") for t, error in reached.items()
    ]
    later = ", ".join(str(t + 1) for t in CURVE if t > 6)
    assert f"Published, too, without a value of ours: round {later}" in ended.output
    best = [
        json.loads(line)["best_value_mean"]
        for job in (0, 1)
        for line in Path("sweep", str(job), "metrics.jsonl").read_text().splitlines()
        if json.loads(line)["round"] == 7
    ]
    errors = [1.0 - value for value in best]
    assert found[2][3] == f"{sum(errors) / 2:.4f}"
    difference, half = (float(each) for each in found[2][4].split("±"))
    assert difference == pytest.approx(sum(errors) / 2 - CURVE[6], abs=1e-4)
    # Student's t with one degree of freedom, of the two seeds' means.
    assert half == pytest.approx(12.7062 * abs(errors[0] - errors[1]) / 2, rel=1e-3)
    # Thompson sampling is the first, and less than it the other; 4 agents with 2 seeds.
    assert re.search(r"control=no_sharing +control=none +5 .* 8 +2", ended.output)
    assert "mean over seeds" in ended.output


@pytest.mark.slow
def test_the_published_search_on_the_published_data(fl_app: Any) -> None:
    """A short one: the initial points and one iteration."""
    root = SHARED_DATA / "landmine"
    if not root.exists():
        pytest.skip(f"no landmine data in {root}")
    ended = fl_app(
        *("run", f"experiment={LANDMINE}_ts", f"objective.root={root}", "num_rounds=2"),
        *("objective.scores=decision", "hydra.run.dir=run"),
    )
    assert ended.code == 0, ended.errors
    summary = json.loads(Path("run", "summary.json").read_text())
    first, second = summary["published"][:2]
    assert (first["round"], second["round"]) == (1, 2)
    # Far from the published value would be another objective.
    assert abs(first["difference"]) < 0.04
    assert second["ours"] <= first["ours"]
    assert summary["published"][-1]["ours"] is None
