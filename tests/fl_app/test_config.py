"""What is wrong in a configuration is named: key, value, allowed."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_app.conf_folder import find_conf
from fl_app.config import compose_config, compose_settings, data_settings, expand_sweep
from fl_app.errors import ConfigError
from fl_app.run_config import to_yaml

CONF = find_conf()


STRATEGIES = (
    "dp_fedavg, dp_fedpaq, dp_fedpaq_paper, dp_fts, dp_fts_de, dp_fts_de_paper, dp_sgd, fedavg, "
    "fedpaq, fedprox, fts, fts_de, niss, niss_dp_fedavg, niss_paper, thompson_sampling"
)


def refuse(*overrides: str) -> ConfigError:
    """Return the refusal of the overrides, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        compose_settings(list(overrides))
    assert "\n" not in str(caught.value)
    assert GlobalHydra.instance().hydra is None
    return caught.value


def write(folder: Path, **experiments: str) -> str:
    """Write experiment files into a folder; return the override with which Hydra finds it."""
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    for name, text in experiments.items():
        file = folder / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\n{text}", encoding="utf-8")
    return f'hydra.searchpath=["file://{folder}"]'


# What is wrong, and how it is said

UNKNOWN = [
    ("num_round=3", "num_round", "did you mean num_rounds?"),
    ("nothing=3", "nothing", "allowed: budget, data, engine, faults, fraction_train"),
    ("target_epsilon=4", "target_epsilon", "did you mean strategy.target_epsilon?"),
    ("strategy.clipping_nor=1", "strategy.clipping_nor", "did you mean strategy.clipping_norm?"),
    ("data.partition.alfa=1", "data.partition.alfa", "did you mean data.partition.alpha?"),
    ("data.partition.foo.bar=1", "data.partition.foo", "allowed: alpha, arguments, kind"),
    ("faults.los_rate=1", "faults.los_rate", "did you mean faults.loss_rate?"),
    ("hydra.foo=1", "hydra.foo", "allowed: callbacks"),
    ("+new.key=1", "new", "allowed: budget, data, engine"),
    ("+strategy.new=1", "strategy.new", "allowed: accountant"),
    ("++new=1", "new", "allowed: budget, data, engine"),
]


@pytest.mark.parametrize(("override", "key", "words"), UNKNOWN)
def test_an_unknown_key_is_named_with_the_nearest(override, key, words):
    refusal = refuse(override)
    assert refusal.key == key
    assert str(refusal).startswith(f"{key}: unknown key; ")
    assert words in str(refusal)


REFUSED = [
    (["seed.x=1"], "seed.x: '1'; allowed: no key below seed, which is one value"),
    (["+seed=3"], "argument: '+seed=3'; allowed: seed=3 (the key exists: no + is needed)"),
    (["~seed"], "argument: '~seed'; allowed: key=value (no key can be left out)"),
    (["~strategy"], "argument: '~strategy'; allowed: key=value (no key can be left out)"),
    (["=3"], "argument: '=3'; allowed: key=value (no key can be left out)"),
    (["num_rounds"], "argument: 'num_rounds'; allowed: key=value (no key can be left out)"),
    (["num_rounds=1,2"], "num_rounds: '1,2'; allowed: one value (several, one run each, with -m)"),
    (
        ["seed=range(0,2)"],
        "seed: 'range(0,2)'; allowed: one value (several, one run each, with -m)",
    ),
    (["num_rounds="], "num_rounds: ''; allowed: an integer or null"),
    (
        ["strategy=nope"],
        f"strategy: 'nope'; allowed: {STRATEGIES}",
    ),
    (
        ["strategy=fedpac"],
        f"strategy: 'fedpac'; allowed: {STRATEGIES}; did you mean fedpaq?",
    ),
    (["strategy=3"], "strategy: '3'; allowed: the name of a file in conf/strategy"),
    (["strategy=null"], "strategy: 'null'; allowed: the name of a file in conf/strategy"),
    (["experiment=nope"], "experiment: 'nope'; allowed: dp_fedpaq_mnist_e100_r10, dp_fedpaq_mni"),
    (["strategy.name=nope"], "strategy.name: 'nope'; allowed: dp_fedpaq"),
    (["model.name=nope"], "model.name: 'nope'; choose one of softmax_regression, mlp, cnn"),
    (["data.scale=0"], "data.scale: 0.0; a number in [1e-30, 1e30] is needed"),
    (["data.partition=3"], "data.partition: 3; allowed: a group of keys"),
    (["seed=null"], "seed: null; allowed: an integer"),
    (["seed=yes"], "seed: 'yes'; allowed: an integer"),
    (["seed=true"], "seed: true; allowed: an integer"),
    (["seed=1.5"], "seed: 1.5; allowed: an integer"),
    (["seed=[1]"], "seed: [1]; allowed: an integer"),
    (["num_rounds=3.0"], "num_rounds: 3.0; allowed: an integer or null (write 3)"),
    (["strategy.target_epsilon=nan"], "strategy.target_epsilon: nan; allowed: a finite number"),
    (["strategy.target_epsilon=inf"], "strategy.target_epsilon: inf; allowed: a finite number"),
    (
        ["strategy.target_delta='\"1e-05\"'"],
        "strategy.target_delta: '\"1e-05\"'; allowed: a finite number",
    ),
    (
        ['strategy.target_delta="1e-05"'],
        "strategy.target_delta: '1e-05'; allowed: a finite number (this is text; write 1e-05 "
        "without quotes)",
    ),
    (["seed=${nope}"], "seed: '${nope}'; allowed: a value (Interpolation key 'nope' not found)"),
    (["seed=???"], "seed: '???'; allowed: a value (Missing mandatory value: seed)"),
    (
        ["hydra.run.dir=null"],
        "hydra.run.dir: 'null'; allowed: what fits the key (field 'hydra.run.dir' is not Optional)",
    ),
    (
        ["strategy.noise_multiplier=1"],
        "strategy.noise_multiplier: 1.0; allowed: null beside strategy.target_epsilon=8.0",
    ),
    (
        ["num_sampled_clients=3", "fraction_train=.5"],
        "fraction_train: 0.5; allowed: null beside num_sampled_clients=3",
    ),
    (["total_local_steps=30"], "total_local_steps: 30; allowed: null beside num_rounds=20"),
    (["strategy.target_bits=5"], "strategy.target_bits: 5; allowed: null beside strategy.num_l"),
    (["strategy.local_epochs=1"], "strategy.local_epochs: 1; allowed: null beside strategy.local"),
    (["strategy.unit=client", "strategy.accountant=pld"], "strategy.accountant: 'pld'; allowed: "),
    (["strategy.clipping_norm=null"], "strategy.clipping_norm: null; allowed: a number > 0 when "),
    (
        ["num_rounds=null", "total_local_steps=7"],
        "total_local_steps: 7; allowed: at least strategy.local_steps",
    ),
    (["published.rounds=[3]"], "published.global_train_loss: []; allowed: one for each of rounds"),
    (["published.rounds=[a]"], "published.rounds[0]: 'a'; allowed: an integer"),
    (["published.rounds=3"], "published.rounds: 3; allowed: a list; each: an integer"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=lambda x: x[0][:40])
def test_what_is_refused_is_said_in_one_clear_line(overrides, message):
    assert str(refuse(*overrides)).startswith(message)


BAD_SYNTAX = ["num_rounds=[", "seed={a", "data.root=~x", "data.root=a=b", "seed='1", "seed=${"]


@pytest.mark.parametrize("override", BAD_SYNTAX)
def test_what_hydra_cannot_read_is_named_with_the_way_to_write_it(override):
    refusal = refuse("num_rounds=1", override)
    key, _, value = override.partition("=")
    assert (refusal.key, refusal.value) == (key, value)
    assert "in quotes" in refusal.allowed


def test_a_path_in_the_home_folder_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/a home")
    for word, root in (("~/my data", "/a home/my data"), ('"~/my data"', "~/my data")):
        assert compose_settings(["data=mnist", f"data.root={word}"]).data.root == root
    assert expand_sweep(["seed=1,2", "data.root=~/x"])[0] == ["seed=1", 'data.root="/a home/x"']
    text = to_yaml(compose_settings([]))
    assert data_settings(text, ["data=mnist", "data.root=~/x"]).root == "/a home/x"
    assert compose_config(["data.root=~/x"]).data.root == "/a home/x"


def test_the_fault_is_found_among_good_overrides():
    good = ["seed=1", "strategy.clipping_norm=1", "data=mnist", "num_rounds=2"]
    for bad, key in (("strategy.clip=1", "strategy.clip"), ("model=nope", "model")):
        for position in (0, len(good)):
            assert refuse(*good[:position], bad, *good[position:]).key == key


def test_the_order_of_groups_and_keys_does_not_matter():
    first = compose_settings(["strategy.local_epochs=2", "strategy=fedavg"])
    assert first == compose_settings(["strategy=fedavg", "strategy.local_epochs=2"])
    assert first.strategy.local_epochs == 2


# The user's own files

OWN_FILES = [
    ("num_rounds: 2\nnum_round: 2", "num_round: unknown key; did you mean num_rounds?"),
    ("strategy: {target_delta: '1e-05'}", "strategy.target_delta: '1e-05'; allowed: a finite"),
    ("seed: yes", "seed: true; allowed: an integer"),
    ("seed: 'yes'", "seed: 'yes'; allowed: an integer"),
    ("strategy: {quantizer: no}", "strategy.quantizer: false; allowed: none or qsgd"),
    ("strategy: {target_epsilon: .nan}", "strategy.target_epsilon: nan; allowed: a finite"),
    ("strategy: {target_epsilon: -.inf}", "strategy.target_epsilon: -inf; allowed: a finite"),
    ("strategy: {learning_rate: null}", "strategy.learning_rate: null; allowed: a finite number"),
    ("strategy: null", "strategy: null; allowed: a group of keys"),
    ("data: {partition: [1]}", "experiment: 'mine'; allowed: what can be read ("),
    ("strategy: {a: b: c", "experiment: 'mine'; allowed: what can be read ("),
    ("- 1", "experiment: 'mine'; allowed: what can be read ("),
    ("defaults:\n  - override /data: mnits", "data: 'mnits'; allowed: "),
]


@pytest.mark.parametrize(("text", "message"), OWN_FILES)
def test_what_is_wrong_in_a_file_of_the_user_is_named(tmp_path, text, message):
    assert str(refuse(write(tmp_path, mine=text), "experiment=mine")).startswith(message)


def test_a_file_of_the_user_is_found_and_read(tmp_path):
    found = write(tmp_path, mine="num_rounds: 2\nstrategy: {target_delta: 1e-05}")
    made = compose_settings([found, "experiment=mine", "seed=4"])
    assert (made.num_rounds, made.strategy.target_delta, made.seed) == (2, 1e-5, 4)
    assert "mine" in refuse("experiment=yours", found).allowed


def test_another_folder_can_be_composed_from(tmp_path):
    (tmp_path / "config.yaml").write_text("strategy: {name: dp_fedpaq}\nnum_rounds: 2\n")
    with pytest.raises(ConfigError, match=r"^strategy.target_epsilon: null; "):
        compose_settings([], config_dir=tmp_path)
    (tmp_path / "config.yaml").write_text("defaults:\n  - strategy: dp_fedpaq\n")
    with pytest.raises(ConfigError, match=r"strategy"):
        compose_settings([], config_dir=tmp_path)


# Hydra's state


def test_composing_leaves_hydra_as_it_was():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        compose_settings(["seed=1"])
        with pytest.raises(ConfigError):
            compose_settings(["sed=1"])
        expand_sweep(["seed=1,2"])
        assert GlobalHydra.instance().hydra is outer
        assert compose("config", ["seed=3"]).seed == 3
    assert GlobalHydra.instance().hydra is None


TEXT = st.text(max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["seed", "data.root", "strategy", "no", "+", "data", "hydra.run.dir"]), TEXT)
def test_any_text_is_either_composed_or_refused(key, value):
    try:
        compose_config([f"{key}={value}"])
    except ConfigError as error:
        refusal = str(error)
    else:
        return
    assert "\n" not in refusal
