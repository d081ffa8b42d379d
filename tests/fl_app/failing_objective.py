"""Objectives of a user's own: on agent 1 the first ones fail in every way there is."""

import sys
from typing import Any

import numpy as np


def raises(point: dict[str, Any], agent: int) -> float:
    if agent == 1:
        raise ValueError("my secret")
    return 0.1 + 0.5 * point["x"]


def ends(point: dict[str, Any], agent: int) -> float:
    if agent == 1:
        sys.exit("my secret")
    return 0.1 + 0.5 * point["x"]


def nan(point: dict[str, Any], agent: int) -> float:
    return float("nan") if agent == 1 else 0.1 + 0.5 * point["x"]


def text(point: dict[str, Any], agent: int) -> Any:
    return "my secret" if agent == 1 else 0.1 + 0.5 * point["x"]


def array(point: dict[str, Any], agent: int) -> Any:
    return np.ones(2) if agent == 1 else 0.1 + 0.5 * point["x"]


def everywhere(point: dict[str, Any], agent: int) -> float:
    raise ValueError("my secret")


def mixed(point: dict[str, Any], agent: int) -> float:
    bonus = {"a": 0.0, "b": 0.2, "c": 0.1}[point["c"]]
    return float(bonus + 0.3 * point["x"] + 0.4 / point["n"] - 0.01 * agent)


def percent(point: dict[str, Any], agent: int) -> float:
    return 10.0 + 50.0 * point["x"]


def percent_or_nothing(point: dict[str, Any], agent: int) -> float:
    return raises(point, 1) if agent == 1 else percent(point, agent)


def percent_of_two(point: dict[str, Any], agent: int) -> float:
    return 87.5 if agent in (1, 2) and point["x"] < 0.5 else 0.1 + 0.5 * point["x"]


def differently(point: dict[str, Any], agent: int) -> float:
    if agent == 1:
        raise KeyError("my secret")
    return float([0.1 + 0.5 * point["x"]][agent])


def fine(point: dict[str, Any], agent: int) -> float:
    return 0.1 + 0.5 * point["x"]
