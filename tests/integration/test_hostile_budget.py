"""A server that keeps to the letter of an owner's limits, and not to what they are for."""

import json
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fl_app.client_app import SETTINGS_KEY
from fl_app.device_budget import LEAST_NOISE
from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.local_task import LocalTask
from strategies.mechanisms.accounting import GaussianReleases, bound_epsilon
from strategies.mechanisms.key_agreement import public_identity
from strategies.niss import upload as niss_upload
from tests.fl_app.devices import CLIENTS, NISS, Device, policy_refused, run_on_devices
from tests.integration.test_hostile_device import request, settings, uploaded

DP_SGD = (
    *("num_rounds=1", "strategy=dp_sgd", "strategy.target_epsilon=null", "strategy.quantizer=none"),
    *("strategy.local_steps=1", "strategy.batch_size=1", "strategy.max_grad_norm=1"),
    *("strategy.clipping_norm=null", "strategy.feature_norm=null"),
)


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


def rare(z: float, rate: float) -> tuple[str, ...]:
    return (
        *DP_SGD,
        f"strategy.noise_multiplier={z}",
        f"strategy.sample_rate={rate}",
        "strategy.target_delta=1e-5",
    )


def test_whoever_is_hardly_ever_drawn_is_hidden_by_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate below delta has epsilon 0 with any noise; nothing leaves all the same."""
    device = Device(tmp_path / "state", max_epsilon=1000.0)
    read: list[LocalTask] = []
    num_records = LocalTask.num_records
    monkeypatch.setattr(
        LocalTask, "num_records", lambda task: (read.append(task), num_records(task))[1]
    )
    for run, z in enumerate((1e-12, 0.05, 0.0999), start=1):
        assert policy_refused(device.ask(request(settings(*rare(z, 1e-5)), uploads=1), run=run))
    assert (device.releases, read) == ([], [])
    assert uploaded(device.ask(request(settings(*rare(0.11, 1e-5)), uploads=1), run=8))
    # With a limit that is less absurd, noise must be what it has to be for a rate of 2 delta.
    strict = Device(tmp_path / "strict", max_epsilon=1.0)
    assert policy_refused(strict.ask(request(settings(*rare(0.11, 1e-5)), uploads=1)))
    assert LEAST_NOISE == 0.1


def test_runs_that_cost_no_epsilon_end_with_the_deltas(tmp_path: Path) -> None:
    """An owner who names max-epsilon alone has a limit on deltas as well: 1e-4."""
    device = Device(tmp_path / "state", max_epsilon=10.0)
    chosen = settings(*rare(2.0, 1e-5))
    left = [uploaded(device.ask(request(chosen, uploads=1), run=run)) for run in range(1, 13)]
    assert [each is not None for each in left] == [True] * 10 + [False] * 2
    assert sum(each.delta for each in device.spent) == pytest.approx(1e-4)


def test_a_guarantee_of_another_relation_is_converted(tmp_path: Path) -> None:
    """zero_out at 10 is 24.4 for a client, or a record, that is exchanged."""
    chosen = settings(
        *("num_rounds=1", "strategy=dp_fedpaq", "strategy.unit=client"),
        *("strategy.neighboring_relation=zero_out", "strategy.target_epsilon=10"),
        *("strategy.local_steps=1", "strategy.batch_size=1"),
    )
    # Of the whole run, too: what it will have taken in the end counts before its first upload.
    for limit, uploads, allowed in ((20.0, 9, False), (20.0, 1, False), (25.0, 1, True)):
        device = Device(tmp_path / f"{limit}-{uploads}", max_epsilon=limit)
        reply = device.ask(request(chosen, uploads=uploads))
        assert (uploaded(reply) is not None) == allowed
        assert policy_refused(reply) != allowed
    (spent,) = device.spent
    assert (spent.unit, spent.neighboring_relation) == ("client", "zero_out")
    assert 9.9 < spent.declared_epsilon <= 10.0
    z = json.loads(device.releases[0].description)["noise_multiplier"]
    oracle = GaussianReleases(z / 2.0, 1, "client", "replace_one", "none", 1.0)
    assert spent.epsilon == pytest.approx(bound_epsilon(oracle, 1e-5).epsilon, rel=1e-9)
    assert 24.0 < spent.epsilon < 25.0


@pytest.mark.parametrize("limit", [{"max_epsilon": 100.0}, {"max_delta": 0.5}, {}])
def test_data_that_change_within_a_run_are_noticed_before_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, float]
) -> None:
    device = Device(tmp_path / "state", **limit)
    chosen = settings("num_rounds=3", "strategy=dp_fedpaq", "strategy.target_epsilon=4")
    assert uploaded(device.ask(request(chosen))) is not None
    read = LocalTask.num_records
    monkeypatch.setattr(LocalTask, "num_records", lambda task: read(task) - 5)
    reply = device.ask(request(chosen, 2))
    assert policy_refused(reply) == bool(limit)
    assert len(device.releases) == (1 if limit else 2)


def test_a_run_of_runs_composes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second configuration, in the first one, names any function and any file."""
    ran: list[object] = []
    monkeypatch.setattr("os.system", ran.append)
    device = Device(tmp_path / "state", allowed_strategies="dp_fts_de", max_epsilon=50.0)
    axes = "objective.search_space=[{name: learning_rate, kind: float, low: 0.1, high: 1}]"
    chosen = settings(
        *("num_rounds=2", "strategy=dp_fts_de", "objective=training_run", "objective.num_agents=4"),
        *("strategy.target_epsilon=4", axes),
    )
    values = json.loads(chosen.to_json())
    values["objective"]["run"] = [
        "num_clients=2",
        "data=user",
        "data.path=os:system",
        "data.root=x",
    ]
    config = ConfigRecord({SETTINGS_KEY: json.dumps(values)})
    content = RecordDict({"arrays": ArrayRecord(), "config": config})
    reply = device.ask(deliver(Message(content, 7, "train", group_id="1")))
    assert policy_refused(reply)
    assert (ran, device.releases) == ([], [])


def write_keys(folder: Path, num_listed: int) -> tuple[list[str], str]:
    """Return the files of the devices' identities, and that of a list of some more."""
    folder.mkdir()
    private = [bytes([number + 1]) * 32 for number in range(num_listed)]
    names = []
    for number, key in enumerate(private[:CLIENTS]):
        file = folder / f"{number}"
        file.write_text(key.hex())
        file.chmod(0o600)
        names.append(str(file))
    (folder / "list").write_text("\n".join(public_identity(each).hex() for each in private))
    return names, str(folder / "list")


SHARED = (*NISS, "num_rounds=1", "strategy.local_steps=1", "strategy.max_participations=1")


def own_noise(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets z of each upload's own noise, in the order of the uploads."""
    found: list[float] = []
    plan, mask = niss_upload.plan_noise, niss_upload.mask_update

    def planned(*given: object) -> object:
        planned.last = plan(*given)  # type: ignore[attr-defined,arg-type]
        return planned.last  # type: ignore[attr-defined]

    def masked(*given: object, **scale: object) -> object:
        assert isinstance(scale["own_std"], float)
        found.append(scale["own_std"] / planned.last.sensitivity.value)  # type: ignore[attr-defined]
        return mask(*given, **scale)  # type: ignore[arg-type]

    monkeypatch.setattr(niss_upload, "plan_noise", planned)
    monkeypatch.setattr(niss_upload, "mask_update", masked)
    return found


def test_without_a_trust_list_the_noise_of_others_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may own every peer, and take away what is shared with them."""
    alone = own_noise(monkeypatch)
    devices = [
        Device(tmp_path / "0", 0, max_epsilon=3.0),
        *(Device(tmp_path / f"{number}", number) for number in range(1, CLIENTS)),
    ]
    run_on_devices(tmp_path / "run", devices, *SHARED)
    assert len(alone) == CLIENTS
    limited, other = (json.loads(devices[i].releases[0].description) for i in (0, 1))
    z = max(alone)
    for told in (limited, other):
        # What is charged is no more than the noise that nobody can take away.
        assert any(each >= told["noise_multiplier"] > 0.999999 * each for each in alone)
    assert limited["noise_multiplier"] == pytest.approx(z, rel=1e-6)
    assert devices[0].spent[0].epsilon <= 3.0
    assert devices[1].spent[0].epsilon > 4.0


def test_the_least_noise_is_the_device_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is on a list: what peers add is not a device's own noise."""
    names, listed = write_keys(tmp_path / "keys", CLIENTS)
    alone = own_noise(monkeypatch)

    def run(least: float) -> list[Device]:
        devices = [
            Device(
                tmp_path / f"{least}-{number}",
                number,
                identity_key=names[number],
                trusted_peers=listed,
                **({"min_noise_multiplier": least} if number == 0 else {}),
            )
            for number in range(CLIENTS)
        ]
        run_on_devices(tmp_path / f"run-{least}", devices, *SHARED)
        return devices

    devices = run(0.01)
    told = json.loads(devices[0].releases[0].description)["noise_multiplier"]
    own = alone[0]
    # With a list what hides it is more than that, and is charged as such.
    assert told > 1.3 * own
    assert len(run(0.999 * own)[0].releases) == 1
    assert run(1.001 * own)[0].releases == []


@pytest.mark.parametrize(
    ("policy", "fraction", "num_listed", "allowed"),
    [
        ({}, 0.1, CLIENTS, True),
        ({}, 0.05, CLIENTS, False),
        ({"min_colluding_fraction": 0.0}, 0.0, CLIENTS, True),
        ({"min_colluding_fraction": 0.3}, 0.3, CLIENTS, True),
        ({"min_colluding_fraction": 0.31}, 0.3, CLIENTS, False),
        # 4 may be in a round, none of them a colluder, and of 20 listed 2 may be.
        ({}, 0.1, 20, False),
        ({"max_epsilon": None}, 0.0, CLIENTS, True),
    ],
)
def test_a_run_allows_for_the_colluders_that_the_owner_reckons_with(
    tmp_path: Path,
    policy: dict[str, float | None],
    fraction: float,
    num_listed: int,
    allowed: bool,
) -> None:
    names, listed = write_keys(tmp_path / "keys", num_listed)
    wanted = {"max_epsilon": 4.5, **policy}
    devices = [
        Device(
            tmp_path / f"{number}",
            number,
            identity_key=names[number],
            trusted_peers=listed,
            **({k: v for k, v in wanted.items() if v is not None} if number == 0 else {}),
        )
        for number in range(CLIENTS)
    ]
    chosen = f"strategy.colluding_fraction={fraction}"
    run_on_devices(tmp_path / "run", devices, *SHARED, chosen)
    assert len(devices[1].releases) == 1
    assert len(devices[0].releases) == allowed
    if allowed:
        assert devices[0].spent[0].epsilon <= 4.0


def test_settings_that_are_honest_are_unaffected(tmp_path: Path) -> None:
    """The twin: what is refused above is refused for its reason, and nothing else."""
    device = Device(tmp_path / "state", max_epsilon=4.5)
    chosen = settings("num_rounds=3", "strategy=dp_fedpaq", "strategy.target_epsilon=4")
    assert [uploaded(device.ask(request(chosen, t))) is not None for t in (1, 2, 3)] == [True] * 3
    (spent,) = device.spent
    assert spent.epsilon == spent.declared_epsilon
    assert spent.delta == 1e-5
