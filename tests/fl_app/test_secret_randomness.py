"""No draw of a secret run can be recomputed from its configuration, but for what is public."""

from typing import Any

import pytest

from strategies.mechanisms import rng

pytestmark = pytest.mark.usefixtures("no_report")

SMALL = ("num_clients=4", "num_rounds=3", "hydra.run.dir=run")
TRAINED = (*SMALL, "strategy.batch_size=8")
SEARCHED = (
    *(*SMALL, "strategy=dp_fts_de", "objective=synthetic", "objective.num_agents=4"),
    *("strategy.num_initial=2", "strategy.release_rounds=[]", "strategy.upload_kind=sample"),
    *("strategy.sample_rate=0.5", "strategy.noise_multiplier=2", "strategy.target_epsilon=null"),
)
RUNS = {
    "dp_fedpaq": (*TRAINED, "num_sampled_clients=2"),
    "niss, normal": (*SMALL, "strategy=niss", "strategy.pair_noise=gaussian"),
    "niss, masks": (*SMALL, "strategy=niss", "strategy.pair_noise=uniform"),
    "dp_fts_de": SEARCHED,
    "dp_fts_de, all upload": (*SEARCHED, "strategy.upload=all"),
    "dp_fts_de, random vectors": (*SEARCHED, "strategy.control=random"),
}
# Features and where a released function is largest are the same for everybody; the functions of a
# synthetic objective are the experiment's own data.
PUBLIC = {"fts-features", "fts-optimum"}
DATA = {"common function", "own function", "observation noise"}


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The purposes of the streams that were functions of their names."""
    purposes: set[str] = set()
    begin, begin_secret = rng.SeededStream.__init__, rng.SecretStream.__init__

    def watch(self: rng.SeededStream, name: bytes) -> None:
        purposes.add(name.decode().split("/")[1])
        begin(self, name)

    def watch_secret(self: rng.SecretStream, key: bytes | None = None) -> None:
        purposes.update([] if key is None else ["a given key"])
        begin_secret(self, key)

    monkeypatch.setattr(rng.SeededStream, "__init__", watch)
    monkeypatch.setattr(rng.SecretStream, "__init__", watch_secret)
    return purposes


@pytest.mark.parametrize("name", RUNS)
def test_a_secret_run_draws_nothing_from_its_seed(fl_app: Any, seeded: set[str], name: str) -> None:
    ended = fl_app("run", *RUNS[name], "randomness=secret")
    assert ended.code == 0, ended.errors
    assert seeded <= PUBLIC | DATA


@pytest.mark.parametrize("name", ["dp_fedpaq", "niss, normal", "dp_fts_de"])
def test_a_seeded_run_draws_everything_from_it(fl_app: Any, seeded: set[str], name: str) -> None:
    """The twin: what is looked at above would be seen."""
    assert fl_app("run", *RUNS[name], "randomness=seeded").code == 0
    drawn = seeded - PUBLIC - DATA
    assert any("noise" in each for each in drawn), drawn
    assert any("cohort" in each for each in drawn), drawn
