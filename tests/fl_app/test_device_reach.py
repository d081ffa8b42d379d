"""What settings could reach on a device: no field without a decision, no objective by default."""

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fl_app import device_reach
from fl_app.config import compose_settings
from fl_app.device_policy import DevicePolicy, PolicyRefusal
from fl_app.device_reach import OBJECTIVES, Reach, decide, free_fields, list_reach
from fl_app.model_settings import ModelSettings
from fl_app.objectives.settings import ObjectiveSettings, TrainingRunSettings
from fl_app.plain_mapping import PlainMapping
from fl_app.search_space import RealAxis
from fl_app.settings import RunSettings

OWNER = DevicePolicy(
    *(0, 4, Path("/state")),
    allowed_strategies=frozenset({"dp_fedpaq", "niss", "dp_fts_de"}),
    allowed_code=frozenset({"mine:read"}),
)
SEARCH = ("num_clients=4", "randomness=secret", "strategy=dp_fts_de", "strategy.target_epsilon=4")
AXES = (RealAxis("learning_rate", "log_float", 1e-3, 1.0),)
INNER = ["num_clients=2", "data=user", "data.path=os:system", "data.root=/"]


def kinds_below(kind: type) -> Iterator[type]:
    """Yield a dataclass, its subclasses, and those of all its fields."""
    yield kind
    for child in kind.__subclasses__():
        yield from kinds_below(child)
    for hint in typing.get_type_hints(kind).values():
        for each in leaves(hint):
            if dataclasses.is_dataclass(each):
                yield from kinds_below(typing.cast(type, each))


def leaves(hint: Any) -> Iterator[Any]:
    arguments = typing.get_args(hint)
    for each in arguments:
        yield from leaves(each)
    if not arguments:
        yield hint


def test_each_field_that_may_hold_text_has_a_decision() -> None:
    """Whoever adds a field that may name code or files says here what becomes of it on a device."""
    kinds = {kind for kind in kinds_below(RunSettings) if kind.__module__.startswith("fl_app.")}
    assert len(kinds) > 15
    open_fields = {
        f"{kind.__name__}.{name}"
        for kind in kinds - {TrainingRunSettings}
        for name in free_fields(kind)
        if decide(kind, name) is Reach.UNDECIDED
    }
    assert open_fields == set()
    # Of the objective that is refused as a whole, nothing needs to be decided.
    assert free_fields(TrainingRunSettings) == {"run", "keys"}


def test_each_objective_is_known_or_refused() -> None:
    known = set(ObjectiveSettings.__subclasses__()) - {NewObjectiveSettings}
    assert known - set(OBJECTIVES) == {TrainingRunSettings}


@dataclass(frozen=True)
class Probe:
    """One field of each kind."""

    text: str = ""
    maybe: str | None = None
    many: tuple[str, ...] = ()
    mapping: PlainMapping | None = None
    switch: bool = False
    path: Path | None = None
    word: Literal["a", "b"] = "a"
    number: int | None = None
    numbers: tuple[float, ...] | Literal["auto"] = ()
    inner: ModelSettings | None = None


def test_which_fields_are_free() -> None:
    assert free_fields(Probe) == {"text", "maybe", "many", "mapping", "switch", "path"}
    assert {decide(Probe, name) for name in free_fields(Probe)} == {Reach.UNDECIDED}


@dataclass(frozen=True)
class NewModelSettings(ModelSettings):
    """A group with a new field."""

    weights_file: str | None = None


def test_a_field_that_nobody_has_decided_on_is_refused() -> None:
    chosen = compose_settings(["num_clients=4", "randomness=secret"])
    OWNER.check(dataclasses.replace(chosen, model=NewModelSettings()))
    given = dataclasses.replace(chosen, model=NewModelSettings(weights_file="/etc/passwd"))
    with pytest.raises(PolicyRefusal, match=r"model\.weights_file: not known"):
        OWNER.check(given)


def test_files_that_the_owner_s_own_do_not_replace_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(device_reach._DECISIONS, (NewModelSettings, "weights_file"), Reach.FILES)
    chosen = compose_settings(["num_clients=4", "randomness=secret"])
    OWNER.check(dataclasses.replace(chosen, model=NewModelSettings()))
    given = dataclasses.replace(chosen, model=NewModelSettings(weights_file="/etc/passwd"))
    with pytest.raises(PolicyRefusal, match=r"data-path: model\.weights_file names files"):
        OWNER.check(given)


@dataclass(frozen=True)
class NewObjectiveSettings(ObjectiveSettings):
    """An objective that is new."""


@pytest.mark.parametrize(
    "objective",
    [
        TrainingRunSettings("training_run", search_space=AXES),
        TrainingRunSettings("training_run", run=tuple(INNER), search_space=AXES),
        NewObjectiveSettings("synthetic"),
    ],
)
def test_an_objective_that_is_not_known_is_refused(objective: ObjectiveSettings) -> None:
    chosen = compose_settings([*SEARCH, "objective=synthetic", "objective.num_agents=4"])
    OWNER.check(chosen)
    with pytest.raises(PolicyRefusal, match="objective"):
        OWNER.check(dataclasses.replace(chosen, objective=objective))


def test_every_place_of_code_is_the_owner_s() -> None:
    for path, allowed in (("mine:read", True), ("os:system", False)):
        for overrides in (
            ("num_clients=4", "data=user", f"data.path={path}"),
            ("num_clients=4", "model=user", f"model.path={path}"),
            (
                *(*SEARCH, "objective=user", f"objective.path={path}", "objective.num_agents=4"),
                "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
            ),
        ):
            chosen = compose_settings(["randomness=secret", *overrides])
            found = [value for _, reach, value in list_reach(chosen) if reach is Reach.CODE]
            assert found == [path]
            if allowed and chosen.data.path is None:
                OWNER.check(chosen)
                continue
            # A reader of the server's choice has nothing to read, whoever has written it.
            reason = "allowed-code" if chosen.data.path is None else "data-path"
            with pytest.raises(PolicyRefusal, match=reason):
                OWNER.check(chosen)
