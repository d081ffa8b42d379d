"""What a run's settings could reach on a device: each field that may hold text, with a decision.

Numbers and words of a fixed list cannot name anything. A field of free text, or a switch, may: it
is allowed because somebody has looked at what becomes of it, and refused as long as nobody has.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

from fl_app.data import DataSettings
from fl_app.data.settings import PartitionSettings
from fl_app.model_settings import ModelSettings
from fl_app.objectives.settings import (
    LandmineSettings,
    LocalTrainingSettings,
    SyntheticSettings,
    UserObjectiveSettings,
)
from fl_app.search_space import Axis, ChoiceAxis
from fl_app.settings import EngineSettings, RunSettings
from fl_app.strategy_settings import NissSettings, SearchSettings, StrategySettings


class Reach(Enum):
    """What a field's value can make a device do.

    CODE: run the function that it names. FILES: read what it names. NOTHING: neither, nor anything
    over a network. UNDECIDED: nobody has said.
    """

    CODE = "code"
    FILES = "files"
    NOTHING = "nothing"
    UNDECIDED = "undecided"


# Objectives that run nothing but what is decided here. None: a run that trains. `training_run`
# composes a configuration of its own, which no policy sees.
OBJECTIVES = (
    type(None),
    LandmineSettings,
    SyntheticSettings,
    LocalTrainingSettings,
    UserObjectiveSettings,
)

_DECISIONS: dict[tuple[type, str], Reach] = {
    (DataSettings, "path"): Reach.CODE,
    (ModelSettings, "path"): Reach.CODE,
    (UserObjectiveSettings, "path"): Reach.CODE,
    (DataSettings, "root"): Reach.FILES,
    (DataSettings, "writer_labels"): Reach.FILES,
    (LandmineSettings, "root"): Reach.FILES,
    # Names of a list that is in the code, columns and splits of the device's own table.
    **dict.fromkeys(
        [
            *((DataSettings, key) for key in ("name", "features", "label", "group", "classes")),
            *((DataSettings, key) for key in ("train_split", "test_split")),
            *((PartitionSettings, key) for key in ("partitioner", "arguments")),
            (ModelSettings, "name"),
        ],
        Reach.NOTHING,
    ),
    # `localize` refuses true.
    (DataSettings, "download"): Reach.NOTHING,
    # For the server and its reports: no device reads them.
    (EngineSettings, "superlink"): Reach.NOTHING,
    (EngineSettings, "signed"): Reach.NOTHING,
    (EngineSettings, "ray_address"): Reach.NOTHING,
    (StrategySettings, "label"): Reach.NOTHING,
    # Numbers by client, and what is only compared with words.
    (NissSettings, "target_epsilons"): Reach.NOTHING,
    (SearchSettings, "standardize"): Reach.NOTHING,
    (SearchSettings, "prior_mean"): Reach.NOTHING,
    # Names and values of axes, for an objective that is allowed.
    (Axis, "name"): Reach.NOTHING,
    (ChoiceAxis, "values"): Reach.NOTHING,
}


def list_reach(settings: RunSettings) -> Iterator[tuple[str, Reach, object]]:
    """Return name, reach and value of each field that may hold text or a switch, and holds some.

    Parameters
    ----------
    settings : RunSettings
    """
    yield from _walk(settings, "")


def _walk(values: Any, prefix: str) -> Iterator[tuple[str, Reach, object]]:
    free = free_fields(type(values))
    for each in dataclasses.fields(values):
        name, value = f"{prefix}{each.name}", getattr(values, each.name)
        if each.name in free and value not in (None, False):
            yield name, decide(type(values), each.name), value
        for one in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(one):
                yield from _walk(one, f"{name}.")


def decide(owner: type, name: str) -> Reach:
    """Return the decision on a field of a class, or of the class that it has the field from."""
    for each in owner.__mro__:
        if (each, name) in _DECISIONS:
            return _DECISIONS[each, name]
    return Reach.UNDECIDED


def free_fields(owner: type) -> frozenset[str]:
    """Return the fields of a dataclass of settings that are no numbers and no fixed words."""
    hints = typing.get_type_hints(owner)
    return frozenset(each.name for each in dataclasses.fields(owner) if _is_free(hints[each.name]))


def _is_free(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Literal or hint in (int, float, type(None), Ellipsis):
        return False
    if origin in (types.UnionType, typing.Union, tuple):
        return any(_is_free(each) for each in typing.get_args(hint))
    # The fields of other settings are looked at by themselves.
    return not dataclasses.is_dataclass(hint)
