"""What a run's settings refuse, and that they survive every way of writing them down."""

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.data import DataSettings, PartitionSettings
from fl_app.engines.faults import FaultSettings
from fl_app.errors import ConfigError
from fl_app.model_settings import ModelSettings
from fl_app.registry import METHODS, build_strategy
from fl_app.run_config import build_settings, read_run_config, read_run_settings, to_yaml
from fl_app.settings import EngineSettings, RunSettings
from fl_app.strategy_settings import StrategySettings, TrainingSettings
from fl_app.structure import build

STRATEGY = TrainingSettings(name="dp_fedpaq", target_epsilon=8.0, local_steps=8, num_levels=100)


def make(strategy: dict | None = None, **top) -> RunSettings:
    chosen = dataclasses.replace(STRATEGY, **(strategy or {}))
    return RunSettings(chosen, **{"num_rounds": 20, "num_clients": 10, **top})


CONTRADICTIONS = [
    ({"total_local_steps": 30}, "total_local_steps", "null beside num_rounds=20"),
    ({"num_rounds": None}, "num_rounds", "a value for it or for total_local_steps"),
    (
        {"num_sampled_clients": 3, "fraction_train": 0.5},
        "fraction_train",
        "null beside num_sampled_clients=3 (to use it, add num_sampled_clients=null)",
    ),
    (
        {"strategy": {"noise_multiplier": 1.0}},
        "strategy.noise_multiplier",
        "null beside strategy.target_epsilon=8.0 (to use it, add strategy.target_epsilon=null)",
    ),
    (
        {"strategy": {"target_epsilon": None}},
        "strategy.target_epsilon",
        "a value for it or for strategy.noise_multiplier",
    ),
    (
        {"strategy": {"local_epochs": 1}},
        "strategy.local_epochs",
        "null beside strategy.local_steps=8",
    ),
    (
        {"strategy": {"local_steps": None}},
        "strategy.local_steps",
        "a value for it or for strategy.local_epochs",
    ),
    ({"strategy": {"target_bits": 5}}, "strategy.target_bits", "null beside strategy.num_levels"),
    (
        {"strategy": {"num_levels": None, "target_bits": 5, "quantizer": "none"}},
        "strategy.target_bits",
        "null with strategy.quantizer=none",
    ),
    ({"randomness": "secret", "train_loss_every": 1}, "train_loss_every", "null with randomness="),
    (
        {"num_rounds": None, "total_local_steps": 7},
        "total_local_steps",
        "at least strategy.local_steps or local_epochs",
    ),
    ({"num_sampled_clients": 11}, "num_sampled_clients", "at most num_clients = 10"),
    ({"num_sampled_clients": 3, "min_replies": 4}, "min_replies", "at most the clients of a round"),
    ({"fraction_train": 0.2, "min_replies": 3}, "min_replies", "at most the clients of a round, 2"),
]


OUT_OF_RANGE = [
    ({"seed": -1}, "seed", "[0, 2**63)"),
    ({"seed": 2**63}, "seed", "[0, 2**63)"),
    ({"faults": FaultSettings(seed=-1)}, "faults.seed", "[0, 2**63)"),
    ({"faults": FaultSettings(loss_rate=1.1)}, "faults.loss_rate", "[0, 1]"),
    ({"faults": FaultSettings(late_rate=-0.1)}, "faults.late_rate", "[0, 1]"),
    ({"num_rounds": 0}, "num_rounds", ">= 1"),
    ({"num_rounds": None, "total_local_steps": 0}, "total_local_steps", ">= 1"),
    ({"train_loss_every": 0}, "train_loss_every", ">= 1"),
    ({"num_clients": 0}, "num_clients", ">= 1"),
    ({"num_sampled_clients": 0}, "num_sampled_clients", ">= 1"),
    ({"fraction_train": 0.0}, "fraction_train", "in (0, 1]"),
    ({"fraction_train": 1.5}, "fraction_train", "in (0, 1]"),
    ({"min_replies": 0}, "min_replies", ">= 1"),
    ({"round_timeout": 0.0}, "round_timeout", "> 0"),
    ({"engine": EngineSettings("simulation", 0)}, "engine.workers", ">= 1"),
    ({"engine": EngineSettings("in_process", 0)}, "engine.workers", ">= 1"),
    ({"strategy": {"num_levels": None, "target_bits": 1}}, "strategy.target_bits", "2 to 17"),
    ({"strategy": {"num_levels": None, "target_bits": 18}}, "strategy.target_bits", "2 to 17"),
    ({"strategy": {"weight_decay": -1.0}}, "strategy.weight_decay", "[0, "),
    ({"strategy": {"proximal": -1.0}}, "strategy.proximal", "[0, "),
    ({"strategy": {"feature_norm": 0.0}}, "strategy.feature_norm", "> 0"),
]


@pytest.mark.parametrize(("change", "key", "allowed"), CONTRADICTIONS + OUT_OF_RANGE)
def test_what_is_not_allowed_is_named(change, key, allowed):
    with pytest.raises(ConfigError) as caught:
        make(**change)
    assert caught.value.key == key
    assert allowed in caught.value.allowed


EDGES = [
    {"seed": 0},
    {"seed": 2**63 - 1},
    {"fraction_train": 1.0},
    {"num_sampled_clients": 10, "min_replies": 10},
    {"faults": FaultSettings(loss_rate=1.0, late_rate=0.0)},
    {"num_clients": None, "num_sampled_clients": 50},
    {"engine": EngineSettings("simulation", 2)},
    {"engine": EngineSettings("in_process", 2)},
    {"num_rounds": None, "total_local_steps": 8},
    {"strategy": {"num_levels": None, "target_bits": 2}},
    {"strategy": {"num_levels": None, "target_bits": 17}},
    {"strategy": {"target_epsilon": None, "noise_multiplier": 0.0}},
]


@pytest.mark.parametrize("change", EDGES)
def test_the_ends_of_the_ranges_are_allowed(change):
    build_strategy(make(**change))


REFUSED_BY_THE_METHOD = [
    ({"unit": "client", "accountant": "pld"}, "strategy.accountant"),
    ({"clipping_norm": None}, "strategy.clipping_norm"),
    (
        {"clipping_norm": None, "target_epsilon": None, "noise_multiplier": 1.0},
        "strategy.clipping_norm",
    ),
    ({"clipping_norm": 0.0}, "strategy.clipping_norm"),
    ({"sensitivity": "convex"}, "strategy.sensitivity"),
    ({"target_epsilon": 0.0}, "strategy.target_epsilon"),
    ({"target_epsilon": None, "noise_multiplier": -1.0}, "strategy.noise_multiplier"),
    ({"target_delta": 0.0}, "strategy.target_delta"),
    ({"target_delta": 1.0}, "strategy.target_delta"),
    ({"learning_rate": 0.0}, "strategy.learning_rate"),
    ({"lr_decay": 1.5}, "strategy.lr_decay"),
    ({"num_levels": 0}, "strategy.num_levels"),
    ({"num_levels": 65536}, "strategy.num_levels"),
    ({"batch_size": 0}, "strategy.batch_size"),
    ({"local_steps": 0}, "strategy.local_steps"),
    ({"max_participations": 0}, "strategy.max_participations"),
]


@pytest.mark.parametrize(("change", "key"), REFUSED_BY_THE_METHOD)
def test_what_the_method_refuses_is_named_as_the_user_knows_it(change, key):
    made = make(change)
    with pytest.raises(ConfigError) as caught:
        build_settings(dataclasses.asdict(made))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_no_noise_without_clipping_is_allowed():
    build_strategy(make({"clipping_norm": None, "target_epsilon": None, "noise_multiplier": 0.0}))


@pytest.mark.parametrize(
    ("total", "steps", "rounds"), [(160, 8, 20), (167, 8, 20), (8, 8, 1), (15, 8, 1), (7, 1, 7)]
)
def test_rounds_of_the_local_steps_in_all_are_rounded_down(total, steps, rounds):
    made = make({"local_steps": steps}, num_rounds=None, total_local_steps=total)
    assert made.rounds == rounds
    assert make().rounds == 20
    epochs = make(
        {"local_steps": None, "local_epochs": steps}, num_rounds=None, total_local_steps=total
    )
    assert epochs.rounds == rounds


@pytest.mark.parametrize(
    ("every", "expected"), [(None, []), (1, list(range(8))), (3, [0, 3, 6, 7]), (9, [0, 7])]
)
def test_the_loss_on_all_records_is_taken_at_its_intervals_and_at_the_end(every, expected):
    made = make(num_rounds=7, train_loss_every=every)
    assert [at for at in range(8) if made.evaluates_train_loss(at)] == expected


@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (5, 15), (8, 127), (17, 65535)])
def test_target_bits_gives_the_most_levels_that_fit(bits, levels):
    made = make({"num_levels": None, "target_bits": bits})
    assert build_strategy(made).parameters.num_levels == levels
    # A sign and a level in 0..s: one level more needs one bit more.
    assert 2 * levels + 1 < 2**bits <= 2 * (levels + 1)


def test_the_methods_are_those_that_the_settings_name():
    (allowed,) = [f.type for f in dataclasses.fields(StrategySettings) if f.name == "name"]
    assert set(allowed.__args__) == set(METHODS)


FLOATS = st.floats(min_value=1e-12, max_value=1e9)


SEEDS = st.integers(0, 2**63 - 1)


# Any text that YAML can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"))


@st.composite
def settings_of_all_kinds(draw):
    change = {
        "target_epsilon": draw(FLOATS),
        "target_delta": draw(FLOATS),
        "clipping_norm": draw(FLOATS),
        "feature_norm": draw(st.none() | FLOATS),
        "learning_rate": draw(FLOATS),
        "quantizer": draw(st.sampled_from(["none", "qsgd"])),
        "unit": draw(st.sampled_from(["record", "client"])),
    }
    root = draw(st.none() | TEXT.filter(bool) | st.sampled_from(["1e-05", "yes", "${seed}", "~"]))
    return make(
        change,
        seed=draw(SEEDS),
        randomness=draw(st.sampled_from(["seeded", "secret"])),
        num_rounds=draw(st.integers(1, 10**9)),
        round_timeout=draw(FLOATS),
        faults=FaultSettings(draw(st.floats(0, 1)), draw(st.floats(0, 1)), draw(SEEDS)),
        engine=EngineSettings("simulation", draw(st.integers(1, 99))),
        data=DataSettings("mnist", root, partition=PartitionSettings("dirichlet", draw(FLOATS), 3)),
        model=ModelSettings("mlp", draw(st.integers(1, 10**6)), "float64"),
    )


@settings(deadline=None)
@given(settings_of_all_kinds())
def test_settings_survive_json_and_yaml(made):
    assert RunSettings.from_json(made.to_json()) == made
    text = to_yaml(made)
    assert text.startswith("format_version: 1\n")
    assert build(RunSettings, read_run_config(text)) == made


def test_settings_survive_the_folder_of_a_run():
    made = make({"target_delta": 1e-5}, data=DataSettings("mnist", "${seed}: 1e-05"))
    assert read_run_settings(to_yaml(made)) == made


BROKEN_JSON = [
    ("{", "settings"),
    ("[]", "settings"),
    ("null", "settings"),
    ("{}", "format_version"),
    ('{"format_version": 2}', "format_version"),
    ('{"format_version": true}', "format_version"),
    ('{"format_version": "1"}', "format_version"),
    ('{"format_version": 1}', "strategy"),
]


@pytest.mark.parametrize(("text", "key"), BROKEN_JSON)
def test_broken_json_is_refused(text, key):
    with pytest.raises(ConfigError) as caught:
        RunSettings.from_json(text)
    assert caught.value.key == key


BROKEN_YAML = [
    ("a: [", "config.yaml"),
    ("", "config.yaml"),
    ("- 1", "config.yaml"),
    ("seed: 1", "format_version"),
    ("format_version: 2", "format_version"),
    ("format_version: true", "format_version"),
    ("format_version: 1", "strategy"),
    ("format_version: 1\nseeds: 1", "seeds"),
    ("format_version: 1\nstrategy: {name: dp_fedpaq}\nseed: .nan", "seed"),
    ("format_version: 1\nstrategy: {name: dp_fedpaq}\nnum_rounds: ${seed}", "num_rounds"),
]


@pytest.mark.parametrize(("text", "key"), BROKEN_YAML)
def test_a_broken_config_of_a_run_is_refused(text, key):
    with pytest.raises(ConfigError) as caught:
        read_run_settings(text)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 200),
    st.sampled_from([2**63, 10**400, -(10**30)]),
    st.floats(),
    st.sampled_from([1e-300, 1e300, 5e-324, 0.5, 1.0]),
    st.sampled_from(["", "auto", "none", "pld", "client", "1e-05", "convex", "zero_out", "mlp"]),
    st.just({}),
    st.just([1]),
)


def list_leaves(values: dict, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in values.items():
        found += list_leaves(value, (*path, key)) if isinstance(value, dict) else [(*path, key)]
    return found


LEAVES = list_leaves(dataclasses.asdict(make()))


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(LEAVES), ODD_VALUES, min_size=1, max_size=3))
def test_any_value_of_any_key_is_either_allowed_or_one_clear_line(changes):
    values = dataclasses.asdict(make())
    for path, value in changes.items():
        group = values
        for part in path[:-1]:
            group = group[part]
        group[path[-1]] = value
    try:
        made = build_settings(values)
    except ConfigError as error:
        refusal = error
    else:
        assert RunSettings.from_json(made.to_json()) == made
        return
    assert refusal.key
    assert "\n" not in str(refusal)


def test_a_client_needs_neither_hydra_nor_what_only_the_server_draws_with():
    program = (
        "import sys, fl_app.settings, fl_app.client_app\n"
        "unwanted = {'hydra', 'omegaconf', 'opacus', 'torchvision', 'matplotlib'}\n"
        "loaded = unwanted & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
