"""A device's policy: what its owner may write, what follows from it, and that nothing else does."""

import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_app.config import compose_settings
from fl_app.data import DataSettings
from fl_app.device_policy import DevicePolicy, PolicyRefusal, is_simulated, read_policy
from fl_app.errors import ConfigError
from fl_app.settings import RunSettings

NODE: dict[str, Any] = {"partition-id": 1, "num-partitions": 4, "state-dir": "/device"}


def policy(**keys: Any) -> DevicePolicy:
    return read_policy({**NODE, **{key.replace("_", "-"): value for key, value in keys.items()}})


@lru_cache(maxsize=64)
def settings(*overrides: str) -> RunSettings:
    return compose_settings(["num_clients=4", "randomness=secret", *overrides])


SEARCH = ("strategy=dp_fts_de", "objective=synthetic", "objective.num_agents=4")
SERVER_NOISE = ("strategy.noise_at=server",)
ZERO_NOISE = ("strategy.target_epsilon=null", "strategy.noise_multiplier=0")
SOME_NOISE = ("strategy.target_epsilon=null", "strategy.noise_multiplier=1.5")
LANDMINE = (
    *("num_clients=29", "strategy=dp_fts_de", "objective=landmine"),
    "objective.root=/elsewhere",
)


HAR = DataSettings("har_geotec", "/data", 1.0, 0.0, stride=128)
FIELD = {"data_path": "/own", "data": '{"name": "landmine"}'}
TRAINING_RUN = (
    *("strategy=dp_fts_de", "objective=training_run", "objective.num_agents=4"),
    "objective.run=['num_clients=2','data=user','data.path=shutil:rmtree','data.root=/x']",
)
OWN = {"data_path": "/own", "data": '{"name": "mnist"}'}


def test_everything_at_once() -> None:
    found = policy(
        data_path="/data",
        data='{"name": "har_geotec", "stride": 128}',
        max_epsilon="4.5",
        max_delta=1e-4,
        unit="client",
        min_noise_multiplier=0,
        min_colluding_fraction="0.3",
        allowed_strategies=" niss , dp_fedpaq",
        allowed_code="mine.models:build, mine.data:read",
        allow_seeded=True,
    )
    assert found == DevicePolicy(
        1,
        4,
        state_dir=Path("/device"),
        data=HAR,
        max_epsilon=4.5,
        max_delta=1e-4,
        unit="client",
        min_noise_multiplier=0.0,
        min_colluding_fraction=0.3,
        allowed_strategies=frozenset({"niss", "dp_fedpaq"}),
        allowed_code=frozenset({"mine.models:build", "mine.data:read"}),
        allow_seeded=True,
    )
    assert found.is_device


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("state-dir", value) for value in (None, "", "relative", 3, True)),
        *(("data-path", value) for value in ("", "relative", 3, False)),
        *(("data", value) for value in ('{"name": "mnist"}', "", 3)),
        *(("max-epsilon", value) for value in (0, -1, "nan", "inf", True, "", [1.0])),
        *(("max-delta", value) for value in (0, 1, 1.0, -1e-9, "nan", True)),
        *(("min-noise-multiplier", value) for value in (-1, "nan", "inf", True, "high")),
        *(("min-colluding-fraction", value) for value in (-0.1, 1, 1.0, "nan", True, "few")),
        *(("unit", value) for value in ("clients", "", None, 1)),
        *(("allow-seeded", value) for value in ("true", 1, "false", None)),
        *(("allowed-strategies", value) for value in ("dp_fedpac", "dp_fedpaq;niss", 1, None)),
        *(("allowed-code", value) for value in ("os", "os.path:", 1, "a:b c:d")),
        *(("partition-id", value) for value in (None, -1, 4, "0", True, 0.0)),
        *(("num-partitions", value) for value in (None, 0, "4", True)),
        *(("identity-key", value) for value in ("/nowhere",)),
    ],
)
def test_what_is_not_allowed_is_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        read_policy({**NODE, key: value})
    assert refused.value.key == key


@pytest.mark.parametrize("key", ["max_epsilon", "max-epsilom", "allow-seed", "trusted-pears", "x"])
def test_a_key_that_is_none_is_no_licence(key: str) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        read_policy({**NODE, key: 1.0})


@pytest.mark.parametrize("value", [1, "true", "yes", 1.0, False])
def test_only_the_grid_says_that_a_client_is_simulated(value: object) -> None:
    assert is_simulated({"simulated": True})
    assert not is_simulated({**NODE, "simulated": value})
    with pytest.raises(ConfigError, match="simulated: unknown key"):
        read_policy({**NODE, "simulated": value})


def test_ray_in_the_launcher_s_process_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for started, actor, expected in [(False, "a", False), (True, None, False), (True, "a", True)]:
        context = SimpleNamespace(get_actor_id=lambda actor=actor: actor)
        ray = SimpleNamespace(
            is_initialized=lambda started=started: started,
            get_runtime_context=lambda context=context: context,
        )
        monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
        assert is_simulated(NODE) == expected


def test_what_an_owner_does_not_say() -> None:
    """Beside max-epsilon there is always a limit on the deltas."""
    assert (policy().max_delta, policy().min_colluding_fraction) == (None, 0.1)
    assert policy(max_epsilon=3).max_delta == 1e-4
    assert policy(max_epsilon=3, max_delta=0.02).max_delta == 0.02
    assert policy(max_delta=1e-6).max_delta == 1e-6


TRAINING_RUN = (
    *("strategy=dp_fts_de", "objective=training_run", "objective.num_agents=4"),
    "objective.run=['num_clients=2']",
)
CASES: list[tuple[dict[str, Any], tuple[str, ...], bool]] = [
    ({}, (), True),
    ({}, ("randomness=seeded",), False),
    ({"allow_seeded": True}, ("randomness=seeded",), True),
    ({"allow_seeded": True, "max_epsilon": 100}, ("randomness=seeded",), False),
    ({}, SEARCH, False),
    ({"allowed_strategies": "dp_fts_de"}, SEARCH, True),
    ({"allowed_strategies": "dp_fts_de"}, (), False),
    ({"allowed_strategies": ""}, (), False),
    ({"allowed_strategies": "dp_fedpaq"}, ("strategy=niss",), False),
    ({"allowed_strategies": "niss"}, ("strategy=niss",), True),
    ({}, SERVER_NOISE, False),
    ({"allowed_strategies": "dp_fedpaq"}, SERVER_NOISE, True),
    ({"allowed_strategies": "dp_fedpaq", "max_epsilon": 100}, SERVER_NOISE, False),
    ({"allowed_strategies": "dp_fedpaq", "min_noise_multiplier": 0.1}, SERVER_NOISE, False),
    ({"unit": "client"}, (), False),
    ({"unit": "client", "allowed_strategies": "dp_fts_de"}, SEARCH, True),
    ({}, ZERO_NOISE, False),
    ({"min_noise_multiplier": 0}, ZERO_NOISE, True),
    ({"min_noise_multiplier": 0, "max_epsilon": 100}, ZERO_NOISE, False),
    ({"min_noise_multiplier": 0.1}, ZERO_NOISE, False),
    ({}, SOME_NOISE, True),
    ({}, ("strategy=niss", "strategy.pair_noise=uniform", *ZERO_NOISE), False),
    (
        {"allowed_strategies": "dp_fts_de", "allow_seeded": True},
        (*SEARCH, "strategy.control=oracle", "randomness=seeded"),
        False,
    ),
    ({}, ("data=mnist", "data.root=/elsewhere"), False),
    ({}, ("data=user", "data.path=mine:read"), False),
    ({"allowed_code": "mine:read"}, ("data=user", "data.path=mine:read"), False),
    # With data of its own, nothing that a run says of data is so much as refused.
    (OWN, (), True),
    (OWN, ("data=mnist", "data.root=/elsewhere"), True),
    (OWN, ("data=mnist", "data.root=/elsewhere", "data.writer_labels=/elsewhere"), True),
    (OWN, ("data=hugging_face", "data.root=some/name", "data.download=true"), True),
    (OWN, ("data=user", "data.path=shutil:rmtree", "data.root=/x"), True),
    ({"allowed_strategies": "dp_fts_de"}, LANDMINE, False),
    ({**OWN, "allowed_strategies": "dp_fts_de"}, LANDMINE, False),
    ({**FIELD, "allowed_strategies": "dp_fts_de"}, LANDMINE, True),
    (FIELD, (), False),
    ({**FIELD, "allowed_strategies": "dp_fts_de"}, SEARCH, True),
    ({"allowed_strategies": "dp_fts_de"}, TRAINING_RUN, False),
    ({**OWN, "allowed_strategies": "dp_fts_de"}, TRAINING_RUN, False),
    ({"allowed_code": "mine:read"}, ("model=user", "model.path=os:system"), False),
]


@pytest.mark.parametrize(("keys", "overrides", "allowed"), CASES)
def test_what_a_run_may_ask(
    keys: dict[str, Any], overrides: tuple[str, ...], allowed: bool
) -> None:
    chosen = settings(*overrides)
    if allowed:
        policy(**keys).check(chosen)
        return
    with pytest.raises(PolicyRefusal):
        policy(**keys).check(chosen)


def test_the_device_s_own_data_take_the_place_of_what_the_settings_name() -> None:
    own = policy(**OWN, allowed_strategies="dp_fts_de,dp_fedpaq")
    for words in (("data=mnist", "data.root=/elsewhere"), ("data=mnist",), ()):
        found = own.localize(settings(*words))
        assert found.data == DataSettings("mnist", "/own", 255.0, 0.1307)
        assert replace(found, data=settings(*words).data) == settings(*words)
    # A search that reads none is left alone.
    assert own.localize(settings(*SEARCH)) == settings(*SEARCH)
    local = ("strategy=dp_fts_de", "objective=local_training", "data=digits")
    assert own.localize(settings(*local)).data == DataSettings("mnist", "/own", 255.0, 0.1307)
    field = policy(**FIELD, allowed_strategies="dp_fts_de")
    assert getattr(field.localize(settings(*LANDMINE)).objective, "root", None) == "/own"
    simulated = read_policy({"simulated": True, "partition-id": 0, "num-partitions": 1})
    there = settings("data=mnist", "data.root=/elsewhere")
    assert simulated.localize(there) is there
