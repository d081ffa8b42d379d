"""The jobs that a sweep stands for, and what an evaluation may replace."""

import dataclasses

import pytest

from fl_app.config import compose_settings, data_settings, expand_sweep
from fl_app.errors import ConfigError
from fl_app.hydra_jobs import put_off_keys
from fl_app.run_config import to_yaml
from tests.fl_app.test_config import write


def test_a_sweep_is_the_product_of_its_values():
    jobs = expand_sweep(["seed=0,1", "strategy=dp_fedpaq,fedavg", "num_rounds=2"])
    assert jobs == [
        ["seed=0", "strategy=dp_fedpaq", "num_rounds=2"],
        ["seed=0", "strategy=fedavg", "num_rounds=2"],
        ["seed=1", "strategy=dp_fedpaq", "num_rounds=2"],
        ["seed=1", "strategy=fedavg", "num_rounds=2"],
    ]
    assert expand_sweep(["seed=range(0,3)"]) == [["seed=0"], ["seed=1"], ["seed=2"]]
    assert expand_sweep(["strategy=glob(fed*)"]) == [
        ["strategy=fedavg"],
        ["strategy=fedpaq"],
        ["strategy=fedprox"],
    ]
    assert expand_sweep([]) == [[]]


def test_a_file_may_hold_the_values_of_a_sweep(tmp_path):
    found = write(tmp_path, mine="hydra: {sweeper: {params: {seed: '0,1'}}}")
    jobs = expand_sweep([found, "experiment=mine", "num_rounds=2"])
    assert [job[0] for job in jobs] == ["seed=0", "seed=1"]
    assert all("num_rounds=2" in job for job in jobs)


@pytest.mark.parametrize(
    ("override", "key"),
    [("seed=choice(1,2", "seed"), ("seed=interval(0,1)", "argument"), ("~seed", "argument")],
)
def test_a_sweep_that_hydra_cannot_make_is_refused(override, key):
    with pytest.raises(ConfigError) as caught:
        expand_sweep(["num_rounds=1,2", override])
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


# Data for an evaluation

RUN_CONFIG = to_yaml(compose_settings(["data.scale=8", "data.partition.kind=dirichlet"]))


def test_the_data_of_a_run_can_be_replaced_in_part_or_whole():
    assert data_settings(RUN_CONFIG, []).scale == 8.0
    changed = data_settings(RUN_CONFIG, ["data.offset=.5"])
    assert (changed.scale, changed.offset, changed.root) == (8.0, 0.5, None)
    assert changed.partition.kind == "dirichlet"
    other = data_settings(RUN_CONFIG, ["data.root=there", "data=mnist", "data.partition.alpha=2"])
    assert (other.name, other.scale, other.root) == ("mnist", 255.0, "there")
    assert (other.partition.kind, other.partition.alpha) == ("iid", 2.0)


DATA_REFUSED = [
    ("data=nope", "data"),
    ("data.nope=1", "data.nope"),
    ("data.scale=[", "data.scale"),
    ("data.scale=1,2", "data.scale"),
    ("data.scale='1'", "data.scale"),
    ("data.scale=0", "data.scale"),
    ("data.partition=3", "data.partition"),
    ("data.root.x=3", "data.root.x"),
    ("data.root=there", "data.root"),
    ("seed=3", "argument"),
    ("dataset=mnist", "argument"),
    ("data", "argument"),
    ("--foo", "argument"),
    ("~data", "argument"),
]


@pytest.mark.parametrize(("override", "key"), DATA_REFUSED)
def test_other_overrides_of_an_evaluation_are_refused(override, key):
    with pytest.raises(ConfigError) as caught:
        data_settings(RUN_CONFIG, [override])
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_where_files_are_swept_over_their_keys_are_set_in_the_jobs(monkeypatch):
    """Hydra composes once without a strategy of the two, whose keys are unknown then."""
    monkeypatch.setenv("HOME", "/a home")
    words = ["strategy=dp_fts_de,fts", "seed=0,1", "strategy.lengthscale=0.3", "objective.root=~/x"]
    words += ["strategy.release_rounds=[1,2]", "num_rounds=3", "hydra.sweep.dir=there"]
    with pytest.raises(ConfigError, match=r"strategy\.lengthscale: unknown key"):
        expand_sweep(words)
    jobs = expand_sweep(put_off_keys(words))
    assert len(jobs) == 4
    for job, (name, seed) in zip(
        jobs, [(name, seed) for name in ("dp_fts_de", "fts") for seed in (0, 1)], strict=True
    ):
        assert {f"strategy={name}", f"seed={seed}", "strategy.lengthscale=0.3"} <= set(job)
        assert "num_rounds=3" in job
        made = compose_settings([*job, "objective=landmine"])
        assert made.objective is not None
        assert dataclasses.asdict(made.objective)["root"] == "/a home/x"
        assert made.search is not None
        assert (made.search.release_rounds, made.search.lengthscale) == ((1, 2), 0.3)
    # Nothing is touched where no file is swept over, or a word cannot be read.
    for same in (["seed=0,1", "num_rounds=2", "strategy.batch_size=3"], [words[0], "a.b=[1"]):
        assert put_off_keys(same) == same
