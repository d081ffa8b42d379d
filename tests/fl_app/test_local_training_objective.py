"""Tuning local models: whose records, which of them, and the training that a point asks for."""

import math

import numpy as np
import pytest

from fl_app.data import DataError, DataSettings, PartitionSettings, RawDataset, Records
from fl_app.data.mnist import read_mnist
from fl_app.errors import ConfigError
from fl_app.model_settings import ModelSettings
from fl_app.objectives import LocalTrainingSettings, load_objective, observe
from fl_app.objectives import local_training as module
from fl_app.search_space import SearchSpace
from tests.conftest import SHARED_DATA

AXES = [
    {"name": "learning_rate", "kind": "log_float", "low": 1e-4, "high": 1e6},
    {"name": "weight_decay", "kind": "float", "low": 0, "high": 0.1},
    {"name": "batch_size", "kind": "log_integer", "low": 1, "high": 64},
]
POINT = {"learning_rate": 0.5, "weight_decay": 0.01, "batch_size": 8}
SIZES = {11: 40, 3: 21, 7: 60}  # records of each person
NATURAL = PartitionSettings("natural_id")
DATA = DataSettings(
    "user", None, 1.0, 0.0, NATURAL, path="tests.fl_app.test_local_training_objective:read_people"
)
MODEL = ModelSettings("softmax_regression")


def make_records(groups) -> tuple[Records, np.ndarray]:
    """Number the records in the last feature; the classes differ by a shift of the first."""
    groups = np.asarray(groups, dtype=np.int64)
    labels = np.arange(len(groups)) % 2
    features = np.random.default_rng(0).normal(size=(len(groups), 3)).astype(np.float32)
    features[:, 0] += 6.0 * labels - 3.0
    features[:, 2] = np.arange(len(groups)) / 1000
    return Records(features, labels.astype(np.int64)), groups


def read_people(root):
    train, groups = make_records(np.repeat(list(SIZES), list(SIZES.values())))
    return RawDataset(train, train.take(np.arange(4)), 2, groups)


def read_lonely(root):
    train, groups = make_records([0, 0, 0, 1])
    return RawDataset(train, train.take(np.arange(4)), 2, groups)


def read_nobody(root):
    train, _ = make_records([0, 0, 0, 1])
    return RawDataset(train, train, 2)


def load(seed: int = 0, data: DataSettings = DATA, axes=AXES, **keys):
    space = SearchSpace.from_plain(axes)
    settings = LocalTrainingSettings("local_training", search_space=space.axes, **keys)
    return load_objective(settings, seed, data, MODEL)


def list_numbers(records: Records) -> list[int]:
    return np.rint(records.features[:, 2] * 1000).astype(int).tolist()


def test_each_agent_is_a_natural_client_in_the_order_of_their_ids():
    objective = load()
    assert objective.num_agents == 3
    assert objective.value_range == (0.0, 1.0)
    starts = {11: 0, 3: 40, 7: 61}
    for agent, person in enumerate(sorted(SIZES)):
        kept, held_out = (list_numbers(part) for part in objective.records(agent))
        assert len(held_out) == round(0.3 * SIZES[person])
        assert sorted(kept + held_out) == [*range(starts[person], starts[person] + SIZES[person])]
    assert load(num_agents=2).num_agents == 2
    assert list_numbers(load(num_agents=1).records(0)[1]) == list_numbers(objective.records(0)[1])


def test_which_records_are_held_out():
    last = load(holdout="last", validation_fraction=0.25)
    assert list_numbers(last.records(1)[1]) == list(range(61 + 45, 61 + 60))
    one, again, other = (list_numbers(load(seed).records(1)[1]) for seed in (0, 0, 1))
    assert one == again != other
    assert one != list(range(61 + 42, 61 + 60))


def test_training_is_what_the_point_asks_for(monkeypatch):
    objective, calls = load(local_epochs=3), []

    def record(model, arrays, records, batches, steps, **keys):
        calls.append((len(records), batches, steps, keys, {n: a.copy() for n, a in arrays.items()}))
        return real(model, arrays, records, batches, steps, **keys)

    real = module.train_steps
    monkeypatch.setattr(module, "train_steps", record)
    for trial, batch_size in ((0, 8), (0, 1), (0, 64), (1, 8)):
        objective.evaluate(0, {**POINT, "batch_size": batch_size}, trial)
        size, batches, steps, keys, _ = calls[-1]
        assert size == 15  # of 21
        num_batches = {8: 2, 1: 15, 64: 1}[batch_size]
        assert len(batches) == 3 * num_batches
        assert max(map(len, batches)) <= batch_size
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        epochs = [
            np.concatenate(batches[i * num_batches : (i + 1) * num_batches]).tolist()
            for i in range(3)
        ]
        assert all(sorted(epoch) == list(range(15)) for epoch in epochs)
        assert epochs[0] != epochs[1]
        assert keys["batch_divisor"] == pytest.approx(15 / num_batches)
        assert (steps.learning_rate, steps.weight_decay) == (0.5, 0.01)
    assert calls[0][1][0].tolist() != calls[3][1][0].tolist()
    assert calls[0][3]["torch_seed"] != calls[3][3]["torch_seed"]
    # every trial begins at the same model
    for name, start in calls[0][4].items():
        assert all(np.array_equal(start, call[4][name]) for call in calls)


def test_accuracy_is_that_of_the_held_out_records():
    objective = load()
    for agent in range(3):
        assert objective.evaluate(agent, POINT) == 1.0
        assert observe(objective, agent, POINT).value == 1.0
    # the labels are swapped where they are scored, and nowhere else
    objective._dataset.train.labels.flags.writeable = True
    chosen = objective._dataset.partitions[0][objective._held_out[0]]
    objective._dataset.train.labels[chosen] ^= 1
    try:
        assert objective.evaluate(0, POINT) == 0.0
        assert objective.evaluate(1, POINT) == 1.0
    finally:
        objective._dataset.train.labels[chosen] ^= 1


def test_values_are_functions_of_the_seed_and_the_trial():
    point = {**POINT, "learning_rate": 1e-3, "batch_size": 1}
    seeds = {seed: [load(seed).evaluate(2, point, trial) for trial in range(4)] for seed in (3, 4)}
    load(3).evaluate(0, POINT, 9)
    assert [load(3).evaluate(2, point, trial) for trial in range(4)] == seeds[3]
    assert seeds[3] != seeds[4]


def test_a_model_that_diverges_is_a_failed_observation():
    objective = load(local_epochs=60)
    point = {"learning_rate": 1e6, "weight_decay": 0.1, "batch_size": 1}
    assert math.isnan(objective.evaluate(0, point))
    observed = observe(objective, 0, point)
    assert (observed.value, observed.failed) == (0.0, True)


def change(index, **keys):
    axes = [dict(axis) for axis in AXES]
    axes[index] = {**axes[index], **keys}
    return axes


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (AXES[:2], r": \['learning_rate', 'weight_decay'\]; allowed: the axes learning_rate, we"),
        (change(0, name="rate"), r": \['rate', "),
        (change(0, kind="log_integer", low=1, high=2), r"\[0\]\.kind: 'log_integer'"),
        (change(0, kind="float", low=0), r"\[0\]\.low: 0.0; allowed: a number > 0"),
        (change(1, low=-0.1), r"\[1\]\.low: -0.1; allowed: a number >= 0"),
        (change(2, kind="float", low=1.0), r"\[2\]\.kind: 'float'; allowed: integer or log"),
        (change(2, kind="integer", low=0), r"\[2\]\.low: 0.0; allowed: a number >= 1"),
    ],
)
def test_other_axes_are_refused(axes, message):
    with pytest.raises(ConfigError, match=rf"^objective\.search_space{message}"):
        load(axes=axes)


def test_choices_of_numbers_are_refused():
    axes = [*AXES[:2], {"name": "batch_size", "kind": "choice", "values": [4, 8]}]
    with pytest.raises(ConfigError, match=r"search_space\[2\]\.kind: 'choice'"):
        load(axes=axes)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_agents": 4}, r"objective\.num_agents: 4; allowed: at most 3"),
        ({"num_agents": 0}, r"objective\.num_agents: 0"),
        ({"local_epochs": 0}, r"objective\.local_epochs: 0"),
        ({"validation_fraction": 0.0}, r"objective\.validation_fraction: 0.0"),
        ({"validation_fraction": 1.0}, r"objective\.validation_fraction: 1.0"),
    ],
)
def test_what_cannot_be_met_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        load(**keys)


def test_data_that_do_not_fit_are_refused():
    here = "tests.fl_app.test_local_training_objective"
    lonely, nobody = (
        DataSettings("user", None, 1.0, 0.0, NATURAL, path=f"{here}:{name}")
        for name in ("read_lonely", "read_nobody")
    )
    with pytest.raises(DataError, match=r"objective\.validation_fraction: 0.3; .*too few records"):
        load(data=lonely)
    assert load(data=lonely, num_agents=1).num_agents == 1
    with pytest.raises(DataError, match="user has no natural clients"):
        load(data=nobody)
    with pytest.raises(DataError, match=r"data\.partition\.kind=natural_id"):
        load(data=DataSettings())
    settings = LocalTrainingSettings(
        "local_training", search_space=SearchSpace.from_plain(AXES).axes
    )
    with pytest.raises(ConfigError, match=r"objective\.name: 'local_training'"):
        load_objective(settings, 0)


@pytest.mark.slow
@pytest.mark.skipif(
    not (SHARED_DATA / "qmnist-writer-labels").is_dir(), reason="MNIST is not in ../shared/data"
)
def test_the_first_fifty_writers():
    mnist, writers = (str(SHARED_DATA / name) for name in ("mnist", "qmnist-writer-labels"))
    data = DataSettings("mnist", mnist, 255.0, 0.1307, NATURAL, writer_labels=writers)
    objective = load(data=data, num_agents=50)
    raw = read_mnist(mnist, writers)
    ids, counts = np.unique(raw.train_groups, return_counts=True)
    assert objective.num_agents == 50
    for agent in (0, 17, 49):
        kept, held_out = objective.records(agent)
        assert len(kept) + len(held_out) == counts[agent]
        own = raw.train.labels[raw.train_groups == ids[agent]]
        both = np.concatenate([kept.labels, held_out.labels])
        assert np.array_equal(np.bincount(both, minlength=10), np.bincount(own, minlength=10))
    good = {"learning_rate": 0.1, "weight_decay": 1e-4, "batch_size": 4}
    values = [observe(objective, agent, good).value for agent in range(50)]
    assert 0.7 < np.mean(values) < 1.0


@pytest.mark.slow
@pytest.mark.skipif(
    not (SHARED_DATA / "har-geotec").is_dir(), reason="har-geotec is not in ../shared/data"
)
def test_people_s_last_windows():
    root = str(SHARED_DATA / "har-geotec")
    data = DataSettings("har_geotec", root, 1.0, 0.0, NATURAL, stride=128, num_test_subjects=1)
    space = SearchSpace.from_plain(AXES)
    settings = LocalTrainingSettings("local_training", holdout="last", search_space=space.axes)
    objective = load_objective(settings, 0, data, ModelSettings("mlp"))
    assert objective.num_agents == 22
    good = {"learning_rate": 0.05, "weight_decay": 1e-4, "batch_size": 4}
    values = [observe(objective, agent, good).value for agent in range(22)]
    # the most frequent activity is half of the windows
    assert np.mean(values) > 0.7
