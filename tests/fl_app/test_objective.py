"""What an agent observes of an objective, how one is chosen, and a user's own."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fl_app.conf_folder import find_conf
from fl_app.config import compose_config
from fl_app.errors import ConfigError
from fl_app.objectives import (
    OBJECTIVES,
    Objective,
    ObjectiveSettings,
    Observation,
    SyntheticSettings,
    UserObjectiveSettings,
    load_objective,
    observe,
)
from fl_app.search_space import SearchSpace
from fl_app.structure import build
from strategies.mechanisms.parameter_checks import ParameterError

AXES = [{"name": "x", "kind": "float", "low": -1, "high": 1}]
SPACE = SearchSpace.from_plain(AXES)
CONF = find_conf() / "objective"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
USER = {"name": "user", "path": "a.b:c", "search_space": AXES}


class Stub(Objective):
    """Calls a function of nothing."""

    def __init__(self, function):
        super().__init__(SPACE, 3, (-2, 5))
        self.function = function
        self.calls = []

    def evaluate(self, agent, point, trial=0):
        self.calls.append((agent, dict(point), trial))
        point["x"] = "changed"
        return self.function()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((0.25, 0.25), (3, 3.0), (np.float32(0.5), 0.5), (np.int64(-1), -1.0)),
        *((5.0, 5.0), (-2.0, -2.0), (np.array(0.5), 0.5), (torch.tensor(3), 3.0)),
        *((torch.tensor(0.5, requires_grad=True), 0.5), (np.longdouble(0.5), 0.5)),
    ],
)
def test_a_finite_number_in_the_range_is_observed(value, expected):
    observed = observe(Stub(lambda: value), 1, {"x": 0.5}, 4)
    assert observed == Observation(expected)
    assert type(observed.value) is float
    assert not observed.failed


@pytest.mark.parametrize(
    ("value", "expected"), [(5.1, 5.0), (-2.1, -2.0), (1e300, 5.0), (torch.tensor(87.5), 5.0)]
)
def test_a_finite_number_outside_the_range_counts_as_the_nearer_end(value, expected):
    observed = observe(Stub(lambda: value), 1, {"x": 0.5}, 4)
    assert observed == Observation(expected, outside=float(value))
    assert type(observed.value) is float
    assert not observed.failed


SHAPED = "return a float, for instance value.item()"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "nan, not a finite number"),
        (math.inf, "inf, not a finite number"),
        (torch.tensor(-math.inf), "-inf, not a finite number"),
        (None, "NoneType: return a float"),
        ("0.5", "str: return a float"),
        (True, "bool: return a float"),
        (np.True_, "bool: return a float"),
        (torch.tensor(True), "bool: return a float"),
        (1j, "complex: return a float"),
        ([1.0], "list: return a float"),
        (np.zeros(1), f"ndarray of shape (1,): {SHAPED}"),
        (torch.zeros(2), f"Tensor of shape (2,): {SHAPED}"),
        (torch.zeros(1, 1), f"Tensor of shape (1, 1): {SHAPED}"),
    ],
)
def test_anything_else_is_a_failed_observation(value, reason):
    observed = observe(Stub(lambda: value), 0, {"x": 0.5})
    assert (observed.value, observed.failed, observed.outside) == (-2.0, True, None)
    assert observed.reason == f"returned {reason}"


@pytest.mark.parametrize("kind", [ValueError, KeyError, MemoryError, SystemExit, OverflowError])
def test_an_exception_is_a_failed_observation_that_does_not_quote_its_text(kind):
    def fail():
        raise kind("a record of the client")

    observed = observe(Stub(fail), 0, {"x": 0.5})
    assert observed == Observation(-2.0, failed=True, reason=kind.__name__)
    assert type(observed.error) is kind
    assert "a record" not in repr(observed)


def test_an_integer_beyond_every_float_is_a_failed_observation():
    assert observe(Stub(lambda: 10**400), 0, {"x": 0.5}).failed


def test_an_interrupt_is_not_an_observation():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        observe(Stub(stop), 0, {"x": 0.5})


def test_the_objective_gets_what_was_asked_and_cannot_change_it():
    stub, point = Stub(lambda: 0.0), {"x": 0.5}
    observe(stub, 2, point, 7)
    assert stub.calls == [(2, {"x": 0.5}, 7)]
    assert point == {"x": 0.5}


@pytest.mark.parametrize(
    ("agent", "point", "trial", "message"),
    [
        *((agent, {"x": 0.5}, 0, r"^agent: ") for agent in (3, -1, True, 0.0)),
        *((0, {"x": 0.5}, trial, r"^trial: ") for trial in (-1, 0.0, False)),
        *((0, {"x": value}, 0, r"^x: ") for value in (1.5, math.nan, "0")),
        *((0, point, 0, r"^point: ") for point in ({}, {"y": 0.5}, {"x": 0.5, "y": 0.5})),
    ],
)
def test_mistakes_of_the_caller_are_errors(agent, point, trial, message):
    stub = Stub(lambda: 0.0)
    with pytest.raises(ParameterError, match=message):
        observe(stub, agent, point, trial)
    assert stub.calls == []


@pytest.mark.parametrize("ends", [(0.0, 0.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_a_range_has_two_finite_ends(ends):
    class Ranged(Stub):
        def __init__(self):
            Objective.__init__(self, SPACE, 3, ends)

    with pytest.raises(ParameterError, match=r"^value_range: "):
        Ranged()


def test_names_agree():
    hint = get_type_hints(ObjectiveSettings)["name"]
    assert set(OBJECTIVES) == set(get_args(hint)) == set(NAMES)
    for name, kind in OBJECTIVES.items():
        assert ObjectiveSettings.choose({"name": name}) is kind.settings
        assert get_args(get_type_hints(kind.settings)["name"]) == (name,)
        assert len(kind.description) > 10


def compose(name, *overrides):
    composed = compose_config([f"objective={name}", *overrides])
    return OmegaConf.to_container(composed.objective)


def settings_from(values):
    return build(ObjectiveSettings.choose(values), values, "objective.")


@pytest.mark.parametrize("name", NAMES)
def test_every_file_composes_and_gives_every_key(name):
    more = [
        "objective.path=a.b:c",
        "objective.search_space=[{name: x, kind: float, low: 0, high: 1}]",
    ]
    values = compose(name, *(more if name == "user" else ()))
    made = settings_from(values)
    assert type(made) is OBJECTIVES[name].settings
    assert set(values) == set(vars(made))
    assert hash(made) == hash(settings_from(values))
    with pytest.raises(ConfigError, match=r"objective\.nme"):
        compose(name, "objective.nme=1")


@pytest.mark.parametrize("name", NAMES)
def test_comments_name_the_allowed_words(name):
    lines = (CONF / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    for key, hint in get_type_hints(OBJECTIVES[name].settings).items():
        words = [word for word in get_args(hint) if isinstance(word, str)]
        (number,) = (i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
        comment = " ".join(line.partition("#")[2] for line in lines[number : number + 2])
        assert [word for word in words if word not in comment] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "branin"}, r"objective\.name: 'branin'; allowed: landmine or synthetic or"),
        ({}, r"objective\.name: missing"),
        ({"name": "landmine", "path": "a:b"}, r"objective\.path: unknown key"),
        (
            {"name": "landmine", "axes": "cubic"},
            r"objective\.axes: 'cubic'; allowed: linear or log",
        ),
        ({"name": "landmine", "scores": None}, r"objective\.scores: null"),
        ({"name": "synthetic", "dimension": 3}, r"objective\.dimension: 3; allowed: 1 to 2"),
        ({"name": "synthetic", "dimension": True}, r"objective\.dimension: true"),
        ({"name": "synthetic", "num_agents": 0}, r"objective\.num_agents: 0"),
        ({"name": "synthetic", "lengthscale": 0}, r"objective\.lengthscale: 0.0; .* 0.01 to 10"),
        ({"name": "synthetic", "noise_std": -1}, r"objective\.noise_std: -1"),
        ({"name": "synthetic", "deviation": math.nan}, r"objective\.deviation: nan"),
        ({"name": "synthetic", "family": "cubic"}, r"objective\.family: 'cubic'"),
        ({**USER, "path": None}, r"objective\.path: null"),
        ({**USER, "path": "a.b"}, r"objective\.path: 'a.b'"),
        ({**USER, "low": 1}, r"objective\.high: 1.0; allowed: .*objective.low = 1"),
        ({**USER, "search_space": []}, r"search_space: \[\]; allowed: a list of 1 to 64 axes"),
        (
            {**USER, "search_space": AXES * 2},
            r"search_space\[1\].name: 'x'; allowed: each name once",
        ),
        (
            {**USER, "search_space": [{**AXES[0], "high": "1"}]},
            r"objective\.search_space\[0\]\.high: '1'",
        ),
    ],
)
def test_bad_settings_are_refused_by_key(values, message):
    with pytest.raises(ConfigError, match=message):
        settings_from(values)


@pytest.mark.parametrize("seed", [-1, 2**63, True, 0.0, None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ConfigError, match=r"^seed: "):
        load_objective(SyntheticSettings("synthetic"), seed)


def test_an_objective_is_kept_and_known_by_its_settings():
    one = load_objective(SyntheticSettings("synthetic"), 3)
    assert load_objective(SyntheticSettings("synthetic"), 3) is one
    assert load_objective(SyntheticSettings("synthetic"), 4) is not one


def test_nothing_heavy_is_imported_before_it_is_needed():
    program = (
        "import sys, fl_app.objectives\n"
        "sys.exit(str({'torch', 'sklearn', 'scipy.io'} & set(sys.modules) or ''))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""


OWN = """
import math

def good(point, agent):
    return point["x"] * (agent + 1)

class Tuner:
    @staticmethod
    def good(point, agent, more=0):
        point.clear()
        return 0.5

def nan(point, agent):
    return math.nan

def text(point, agent):
    return "0.5"

def fails(point, agent):
    raise RuntimeError(f"record 17 of agent {agent}")

def one_argument(point):
    return 0.0

def three_arguments(point, agent, data):
    return 0.0

NUMBER = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write modules of a user's own, and return a loader of objectives in them."""
    module = f"own_objective_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / f"broken_{module}.py").write_text("raise OSError('at import')")
    monkeypatch.syspath_prepend(tmp_path)

    def load(name: str, prefix: str = "") -> Objective:
        path = f"{prefix}{module}:{name}"
        return load_objective(UserObjectiveSettings("user", path, 4, -10, 10, SPACE.axes), 0)

    return load


def test_a_user_s_function_is_evaluated(own):
    objective = own("good")
    assert (objective.num_agents, objective.value_range) == (4, (-10.0, 10.0))
    assert objective.space == SPACE
    assert objective.optimum(0) is None
    assert observe(objective, 2, {"x": 0.5}) == Observation(1.5)
    point = {"x": 0.5}
    assert own("Tuner.good").evaluate(0, point) == 0.5
    assert point == {"x": 0.5}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nan", "returned nan"), ("text", "returned str"), ("fails", "^RuntimeError$")],
)
def test_a_user_s_function_that_fails_is_a_failed_observation(own, name, reason):
    observed = observe(own(name), 1, {"x": 0.5})
    assert (observed.value, observed.failed) == (-10.0, True)
    assert re.search(reason, observed.reason)


@pytest.mark.parametrize(
    ("name", "prefix", "message"),
    [
        ("good", "missing_", "no module missing_own_objective.* is installed here"),
        ("good", "broken_", "importing broken_.* raised OSError: at import"),
        ("better", "", "a name that own_objective_.* has is needed"),
        ("NUMBER", "", r"a function is needed \(this is a value of type int\)"),
        ("one_argument", "", r"a function of \(point: dict, agent: int\).*too many positional"),
        ("three_arguments", "", r"a function of \(point: dict, agent: int\).*'data'"),
    ],
)
def test_a_user_s_function_that_cannot_be_called_is_refused(own, name, prefix, message):
    with pytest.raises(ConfigError, match=rf"^objective\.path: '.*{message}"):
        own(name, prefix)
