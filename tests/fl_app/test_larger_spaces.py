"""Searches of four axes and more: choices and integers among them, with the strategy's defaults."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.dp_fts_de.algorithm import build_features
from strategies.dp_fts_de.run_plan import NUM_FOURIER, unplanned_parameters

SPACE = (
    "objective.search_space=["
    "{name: rate, kind: log_float, low: 1.0e-4, high: 1.0},"
    "{name: decay, kind: float, low: 0.0, high: 0.5},"
    "{name: layers, kind: integer, low: 1, high: 8},"
    "{name: batch, kind: log_integer, low: 8, high: 256},"
    "{name: kind, kind: choice, values: [adam, sgd, momentum]}]"
)
WORST = {"adam": 0.0, "sgd": 0.2, "momentum": 0.1}


def five(point: dict[str, Any], agent: int) -> float:
    """Largest, 1, at rate .01, decay .2, 4 layers, batches of 64 and adam."""
    away = (math.log10(point["rate"]) + 2.0) ** 2 / 8 + (point["decay"] - 0.2) ** 2
    away += (point["layers"] - 4) ** 2 / 50 + (math.log2(point["batch"]) - 6.0) ** 2 / 25
    return math.exp(-away) - WORST[point["kind"]]


@pytest.mark.parametrize("dimension", [3, 4, 5, 8, 64])
def test_the_number_of_features_stays_within_its_bound_whatever_the_axes(dimension: int) -> None:
    chosen = unplanned_parameters(30, "auto", {"dimension": dimension, "target_epsilon": 2.0})
    # All but 1% of the variance takes 83 in three dimensions, and more than the bound in four.
    assert chosen.num_random_features == (83 if dimension == 3 else 100)
    assert NUM_FOURIER == 100
    features = build_features(chosen)
    values = features.values(np.random.default_rng(0).random((7, dimension)))
    assert values.shape == (7, chosen.num_random_features)
    assert np.isfinite(values).all()
    # What they hold of the kernel's variance at a point never exceeds it.
    assert (values**2).sum(axis=1).max() <= 1.0 + 1e-9


def test_a_user_searches_five_axes_with_the_defaults(
    fl_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_app.report.plots.write_plots", lambda run, folder: [])
    ended = fl_app(
        *("run", "strategy=dp_fts_de", "objective=user", "objective.num_agents=20", SPACE),
        *(f"objective.path={__name__}:five", "objective.low=-0.2", "num_rounds=4"),
        "hydra.run.dir=run",
    )
    # 100 numbers of 20 clients: 1.994 sqrt(100) / 20 of the largest signal is noise.
    assert (ended.code, ended.errors) == (0, "")
    best = json.loads(Path("run", "best_point.json").read_text())
    for each in best["agents"]:
        point = each["point"]
        assert each["value"] == five(point, each["agent"])
        assert type(point["layers"]) is type(point["batch"]) is int
        assert point["kind"] in WORST
        assert 1e-4 <= point["rate"] <= 1.0
    assert best["shared"]["point"].keys() == best["agents"][0]["point"].keys()
    # No picture of five axes; the page is there.
    assert not Path("run", "shared_function.json").exists()
    assert Path("run", "report.html").exists()
    queries = [json.loads(line) for line in Path("run", "queries.jsonl").read_text().splitlines()]
    shared = [row["points"][0] for row in queries if row["is_shared"]]
    # Queried in the round after the release, by all who had not been there; each agent climbs from
    # starts of its own.
    assert {row["round"] for row in queries if row["is_shared"]} == {2}
    assert len(shared) > 10


def test_few_clients_with_five_axes_are_warned(
    fl_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_app.report.plots.write_plots", lambda run, folder: [])
    monkeypatch.setattr("fl_app.report.html.write_report", lambda run, path: path)
    ended = fl_app(
        *("run", "strategy=dp_fts_de", "objective=user", "objective.num_agents=10", SPACE),
        *(f"objective.path={__name__}:five", "objective.low=-0.2", "num_rounds=2"),
        "hydra.run.dir=run",
    )
    assert ended.code == 0
    assert ended.errors.count("mostly noise") == 1
    assert "2 times that of the largest sum that 10 clients can have" in ended.errors
    assert "20 clients or more" in ended.errors
    assert "mostly noise" in Path("run", "run.log").read_text()
