"""The folder of a small search, for the tests of the report."""

import json
import math

import numpy as np

from tests.fl_app.report_samples import GUARANTEE

SPACE = [
    {"name": "C", "kind": "float", "low": 0.0, "high": 10.0},
    {"name": "gamma", "kind": "log_float", "low": 0.01, "high": 100.0},
]
USERS = GUARANTEE | {
    **{"adversary": "model_user", "unit": "client", "epsilon": 2.0},
    **{"colluding_fraction": 1.0, "neighboring_relation": "zero_out"},
}
SEEDED_USERS = USERS | {"randomness": "seeded", "valid": False, "why_not": "The seed is known."}
SEARCH_SUMMARY = {
    "format_version": 1,
    "strategy": "dp_fts_de",
    "mode": "sound",
    "seed": 3,
    "randomness": "seeded",
    "engine": "in_process",
    "num_rounds": 13,
    "num_clients": 6,
    "num_parameters": None,
    "test_accuracy": None,
    "test_loss": None,
    "best_value_mean": 0.8125,
    "best_value_worst": 0.75,
    "simple_regret_mean": 0.0625,
    "num_releases": 4,
    "noise_multiplier": 3.988,
    "epsilon": 2.0,
    "delta": 1e-5,
    "wall_seconds": 9.0,
    "control": "none",
    "objective": "synthetic",
    "uplink_bytes_total": 52000,
    "uplink_bits_per_parameter": None,
    "versions": {"flwr": "1.42.0"},
}
NO_VALUES = (
    *("best_value_mean", "best_value_worst", "simple_regret_mean", "simple_regret_worst"),
    *("cumulative_regret_mean", "cumulative_regret_worst", "clipped_fraction", "signal_to_noise"),
    "sharing_gain",
)


def draw_queries(seed, agents, iterations, dimension, initial=4, better=0.0):
    """Return lines of queries.jsonl: agents climb towards a common maximum at 0.6."""
    rng = np.random.default_rng(seed)
    level = rng.normal(scale=0.1)
    lines = []
    for number in range(1, iterations + 2):
        for agent in range(agents):
            spread = 0.5 / math.sqrt(number)
            if number == 1:
                points = rng.uniform(size=(initial, dimension))
            else:
                points = np.clip(rng.normal(0.6, spread, size=(1, dimension)), 0, 1)
            near = -((points - 0.6) ** 2).sum(axis=1) + 0.8 + level + 0.01 * agent
            values = near + (better if number > 1 else 0.0) + rng.normal(scale=0.02, size=len(near))
            lines.append(
                {
                    "round": number,
                    "agent": agent,
                    "points": points.tolist(),
                    "values": values.tolist(),
                    "is_shared": number in (2, 3, 5, 9),
                }
            )
    return lines


def search_rows(lines, agents, rounds):
    """Return lines of metrics.jsonl that fit the queries."""
    best = np.full(agents, -np.inf)
    cumulative = 0.0
    rows = [search_row(0)]
    for number in range(1, rounds + 1):
        for line in lines:
            if line["round"] == number:
                best[line["agent"]] = max(best[line["agent"]], *line["values"])
        cumulative += 1.0 - best.mean()
        released = number in (1, 2, 4, 8)
        rows.append(
            search_row(
                number,
                best_value_mean=best.mean(),
                best_value_worst=best.min(),
                simple_regret_mean=1.0 - best.mean(),
                simple_regret_worst=1.0 - best.min(),
                cumulative_regret_mean=cumulative,
                cumulative_regret_worst=1.3 * cumulative,
                clipped_fraction=0.5 if released else None,
                signal_to_noise=2.0 / number if released else None,
                sharing_gain=0.02 - 0.005 * number if released else None,
            )
        )
    return rows


def search_row(number, **changes):
    row = dict.fromkeys(("train_loss", "test_loss", "test_accuracy", *NO_VALUES))
    row |= {
        "round": number,
        "seconds": 0.3,
        "num_sampled": 6 if number else 0,
        "num_replies": 6 if number else 0,
        "num_failures": 0,
        "num_ineligible": 0,
        "uplink_bytes": 4000 if number else 0,
        "downlink_bytes": 8000 if number else 0,
        "control_bytes": 100 if number else 0,
        "epsilon": 0.5 * min(number, 4),
        "delta": 1e-5,
        "num_uploaded": 6 if number else 0,
        "num_releases": sum(number >= each for each in (1, 2, 4, 8)),
    }
    return row | changes


def best_point(lines, agents, space=SPACE):
    """Return best_point.json; the points are written as values of the axes."""
    tops = []
    for agent in range(agents):
        tried = [
            (value, place)
            for line in lines
            if line["agent"] == agent
            for value, place in zip(line["values"], line["points"], strict=True)
        ]
        value, place = max(tried)
        tops.append({"agent": agent, "value": value, "point": at(place, space)})
        tops[-1] |= {"failures": 0, "outside": 0}
    shared = {"point": at([0.55] * len(space), space), "value": None, "release_round": 8}
    shared |= {"noise_share": 0.8, "mostly_noise": False, "signal_to_noise": 0.6}
    return {"format_version": 1, "search_space": space, "agents": tops, "shared": shared}


def at(place, space=SPACE):
    """Return the point at a place in the unit cube of real axes."""
    point = {}
    for axis, unit in zip(space, place, strict=True):
        low, high = axis["low"], axis["high"]
        linear = axis["kind"] == "float"
        value = low + unit * (high - low) if linear else low * (high / low) ** unit
        point[axis["name"]] = min(max(value, low), high)
    return point


def shared_function(dimension):
    grid = [index / 20 for index in range(21)]
    names = [axis["name"] for axis in SPACE[:dimension]]
    bump = [math.exp(-((each - 0.55) ** 2) / 0.05) - 0.4 for each in grid]
    halves = [{"low": [0.0], "high": [0.5]}, {"low": [0.5], "high": [1.0]}]
    if dimension == 2:
        halves = [
            {"low": [low, 0.0], "high": [high, 1.0]} for low, high in ((0.0, 0.5), (0.5, 1.0))
        ]
    values = bump if dimension == 1 else [[a * b for b in bump] for a in bump]
    return {
        "format_version": 1,
        "release_round": 8,
        "axes": names,
        "subregions": halves,
        "grid": grid,
        "values": values,
    }


def search_config(seed, control):
    return (
        f"seed: {seed}\nnum_rounds: 13\nobjective:\n  name: synthetic\n"
        f"strategy:\n  label: dp_fts_de\n  control: {control}\n"
    )


def save_search(folder, *, seed=3, control="none", agents=6, iterations=12, dimension=2, **given):
    """Write a search; `better` raises what is found after the initial points.

    Given as None, a file (queries, best, shared, summary, guarantees) is not written.
    """
    folder.mkdir(parents=True)
    lines = draw_queries(seed, agents, iterations, dimension, better=given.pop("better", 0.0))
    space = SPACE[:dimension] if dimension <= 2 else None
    summary = SEARCH_SUMMARY | {"seed": seed, "control": control, "num_clients": agents}
    content = {
        "metrics": search_rows(lines, agents, iterations + 1),
        "queries": lines,
        "best": best_point(lines, agents, space) if space else None,
        "shared": shared_function(dimension) if space else None,
        "summary": summary,
        "guarantees": [SEEDED_USERS],
        "config": search_config(seed, control),
    }
    assert set(given) <= set(content)
    content |= given
    for name in ("metrics", "queries"):
        if content[name] is not None:
            text = "".join(json.dumps(line) + "\n" for line in content[name])
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    privacy = {"format_version": 1, "guarantees": content["guarantees"]}
    for name, value in (
        ("best_point.json", content["best"]),
        ("shared_function.json", content["shared"]),
        ("summary.json", content["summary"]),
        ("privacy.json", None if content["guarantees"] is None else privacy),
    ):
        if value is not None:
            (folder / name).write_text(json.dumps(value), encoding="utf-8")
    (folder / "config.yaml").write_text(content["config"], encoding="utf-8")
    return folder
