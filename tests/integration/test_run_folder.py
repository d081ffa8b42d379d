"""A whole run in process: what it reaches, counts and leaves behind."""

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.engines.in_process import InProcessGrid
from fl_app.errors import RunError
from fl_app.model_files import load_model_file, sha256_of_arrays
from fl_app.report.run_folder import read_run_folder
from fl_app.server_app import app as server_app
from strategies.mechanisms.rng import Stream
from tests.conftest import SHARED_DATA, Outcome

Run = Callable[..., Outcome]
FIELDS = {
    *("round", "seconds", "num_sampled", "num_replies", "num_failures", "num_ineligible"),
    *(
        "train_loss",
        "global_train_loss",
        "test_loss",
        "test_accuracy",
        "uplink_bytes",
        "downlink_bytes",
    ),
    *("control_bytes", "epsilon", "delta"),
}
SUMMARY = {
    *("format_version", "strategy", "mode", "seed", "randomness", "engine", "num_rounds"),
    *("num_clients", "num_parameters", "test_accuracy", "test_loss", "uplink_bytes_total"),
    *("uplink_bits_per_parameter", "epsilon", "delta", "wall_seconds", "versions"),
}


def test_the_default_run(run: Run) -> None:
    outcome = run()
    assert outcome.summary.keys() >= SUMMARY
    assert outcome.summary["num_parameters"] == 650
    assert outcome.summary["num_rounds"] == 20
    # One seed of a mean of .87 with standard deviation .014; a run without learning reaches .1.
    assert outcome.summary["test_accuracy"] > 0.8
    assert 7.92 <= outcome.summary["epsilon"] <= 8.0
    assert [row["round"] for row in outcome.rows] == list(range(21))
    assert all(row.keys() == FIELDS for row in outcome.rows)
    epsilons = [row["epsilon"] for row in outcome.rows]
    assert epsilons[0] == 0.0
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == outcome.guarantees[0]["epsilon"]
    # 8 bits a parameter (a sign and 7 bits of level), and a scale: 654 bytes an update.
    assert {row["uplink_bytes"] for row in outcome.rows[1:]} == {10 * 654}
    assert outcome.summary["uplink_bytes_total"] == 20 * 10 * 654
    assert outcome.summary["uplink_bits_per_parameter"] == pytest.approx(8 * 654 / 650)
    model = load_model_file(outcome.folder / "model.safetensors")
    assert sha256_of_arrays(model) == outcome.sha256
    assert not any(row["valid"] for row in outcome.guarantees)
    read_run_folder(outcome.folder)


def test_the_same_seed_gives_the_same_model_and_another_another(run: Run) -> None:
    few = ("num_rounds=3", "num_sampled_clients=4")
    assert run(*few).sha256 == run(*few).sha256
    assert run(*few).sha256 != run(*few, "seed=1").sha256


def test_a_secret_run_is_a_release_and_reports_nothing_of_the_clients(run: Run) -> None:
    first, second = (run("num_rounds=2", "randomness=secret") for _ in range(2))
    assert first.sha256 != second.sha256
    assert all(row["valid"] and row["why_not"] is None for row in first.guarantees)
    assert all(row["train_loss"] is None for row in first.rows)


@pytest.mark.parametrize("strategy", ["fedavg", "fedpaq", "fedprox"])
def test_baselines_have_no_guarantee(run: Run, strategy: str) -> None:
    outcome = run("num_rounds=2", f"strategy={strategy}")
    assert outcome.summary["epsilon"] is None
    assert all(row["epsilon"] is None and not row["valid"] for row in outcome.guarantees)
    assert outcome.rows[-1]["train_loss"] < outcome.rows[1]["train_loss"]


@pytest.mark.parametrize("model", ["softmax_regression", "mlp", "cnn"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_every_model_and_type_trains(run: Run, model: str, dtype: str) -> None:
    outcome = run(
        "num_rounds=2", "strategy=fedpaq", "strategy.learning_rate=0.05",
        f"model={model}", f"model.dtype={dtype}",
    )  # fmt: skip
    assert outcome.rows[-1]["test_loss"] < outcome.rows[0]["test_loss"]


def test_networks_fall_back_to_the_whole_update_bound(run: Run) -> None:
    softmax = run("num_rounds=1")
    network = run("num_rounds=1", "model=mlp", "strategy.clipping_norm=0.5")
    assert any("convex" in line for line in softmax.guarantees[0]["assumptions"])
    assert any("clipped to L2 norm 0.5" in line for line in network.guarantees[0]["assumptions"])


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "label_shards"])
def test_every_partition(run: Run, kind: str) -> None:
    outcome = run(
        "num_rounds=2", f"data.partition.kind={kind}", "strategy.local_steps=2",
        "data.partition.alpha=5",
    )  # fmt: skip
    assert outcome.rows[-1]["num_replies"] == 10


def test_lost_messages_end_no_run_and_stay_charged(run: Run) -> None:
    outcome = run("num_rounds=6", "faults.loss_rate=0.3")
    lost = sum(row["num_failures"] for row in outcome.rows)
    assert 0 < lost < 60
    whole = run("num_rounds=6")
    assert outcome.summary["epsilon"] == whole.summary["epsilon"]
    assert outcome.summary["uplink_bytes_total"] == (60 - lost) * 654


def test_late_messages_are_dropped_as_stale(run: Run) -> None:
    outcome = run("num_rounds=6", "faults.late_rate=0.3")
    late = sum(row["num_failures"] for row in outcome.rows)
    assert 0 < late < 60
    assert sum(row["num_replies"] for row in outcome.rows) == 60 - late


def test_all_lost_is_a_failed_run(run: Run) -> None:
    with pytest.raises(RunError, match="no valid upload in 3 rounds"):
        run("num_rounds=3", "faults.loss_rate=1")


def test_no_client_with_enough_records_is_a_failed_run(run: Run) -> None:
    with pytest.raises(RunError, match=r"sit out: strategy.local_steps \* strategy.batch_size"):
        run("num_rounds=3", "strategy.batch_size=100")


def test_small_clients_sit_out(run: Run) -> None:
    outcome = run("num_rounds=2", "data.partition.kind=dirichlet", "data.partition.alpha=0.3")
    row = outcome.rows[1]
    assert row["num_ineligible"] > 0
    assert row["num_replies"] + row["num_ineligible"] == 10


def test_training_that_fails_everywhere_is_a_failed_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("record 17 says: secret")

    monkeypatch.setattr("fl_app.local_model.train_steps", fail)
    with pytest.raises(
        RunError, match="local training failed or diverged on every client"
    ) as caught:
        run("num_rounds=3")
    assert "secret" not in str(caught.value)


def test_uplink_bytes_are_the_payloads_that_a_recording_grid_sees(tmp_path: Path) -> None:
    seen = {"up": 0, "down": 0}

    class Recording(InProcessGrid):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            messages = list(messages)
            for reply in super().send_and_receive(messages, timeout=timeout):
                seen["up"] += sum(len(a.data) for a in reply.content["arrays"].values())
                yield reply
            seen["down"] += sum(len(a.data) for m in messages for a in m.content["arrays"].values())

    from flwr.app import Context, RecordDict

    settings = compose_settings(["num_rounds=4", "num_sampled_clients=3"])
    config = {"settings": settings.to_json(), "output-dir": str(tmp_path)}
    server_app(Recording(client_app, 10, config), Context(1, 0, {}, RecordDict(), config))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["uplink_bytes"] for row in rows) == seen["up"] == 4 * 3 * 654
    assert sum(row["downlink_bytes"] for row in rows) == seen["down"]


def test_one_folder_holds_one_run(tmp_path: Path) -> None:
    from fl_app.run_store import RunStore

    first = RunStore(tmp_path / "run")
    with pytest.raises(RunError, match="another run is writing to"):
        RunStore(tmp_path / "run")
    first.write_config("a: 1\n")
    (first.folder / "report.html").write_text("old")
    first.close()
    again = RunStore(tmp_path / "run")
    assert not (again.folder / "report.html").exists()
    again.close()


def test_every_client_in_error_ends_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("record 17 says: secret")

    monkeypatch.setattr("fl_app.local_model.train_steps", fail)
    with pytest.raises(RunError, match="every client of round 1 answered with an error"):
        run("num_rounds=3", "strategy=fedavg")


def test_a_round_in_which_nobody_is_asked_is_a_round(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither one of clients that all failed, nor one of clients that all sat out."""
    from strategies.dp_fedpaq import cohort as cohorts

    real = cohorts.sample_cohort

    def sample(num_clients: int, num_sampled: int, kind: str, stream: Stream) -> np.ndarray:
        cohort = real(num_clients, num_sampled, kind, stream)
        empty.append(len(empty) in (0, 2))
        return cohort[:0] if empty[-1] else cohort

    empty: list[bool] = []
    monkeypatch.setattr(cohorts, "sample_cohort", sample)
    outcome = run("num_rounds=4", "faults.late_rate=0.3")
    assert [row["num_sampled"] for row in outcome.rows] == [0, 0, 10, 0, 10]
    assert outcome.rows[1]["num_failures"] == outcome.rows[1]["num_replies"] == 0
    assert outcome.rows[1]["epsilon"] == 0.0
    assert outcome.rows[1]["test_loss"] == outcome.rows[0]["test_loss"]


def test_too_few_replies_leave_the_model_as_it_was(run: Run) -> None:
    outcome = run("num_rounds=6", "num_clients=5", "faults.loss_rate=0.4", "min_replies=4")
    for before, row in itertools.pairwise(outcome.rows):
        unchanged = row["test_loss"] == before["test_loss"]
        assert unchanged == (row["num_replies"] < 4)
    assert {row["num_replies"] < 4 for row in outcome.rows[1:]} == {True, False}


def test_replies_after_the_time_out_are_failures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second with each look at it: two looks, then one a client."""
    ticks = itertools.count()
    monkeypatch.setattr("fl_app.engines.in_process.time.monotonic", lambda: float(next(ticks)))
    outcome = run("num_rounds=3", "num_clients=6", "round_timeout=4")
    assert [row["num_replies"] for row in outcome.rows[1:]] == [3, 3, 3]
    assert [row["num_failures"] for row in outcome.rows[1:]] == [3, 3, 3]
    with pytest.raises(RunError, match="no valid upload in 2 rounds"):
        run("num_rounds=2", "num_clients=6", "round_timeout=0.5")


def test_what_was_given_away_is_said_even_if_the_run_fails(tmp_path: Path) -> None:
    from fl_app.engines.in_process import run_in_process

    settings = compose_settings(["num_rounds=3", "faults.loss_rate=1", "randomness=secret"])
    config = {"settings": settings.to_json(), "output-dir": str(tmp_path)}
    with pytest.raises(RunError):
        run_in_process(server_app, client_app, 10, config)
    rows = json.loads((tmp_path / "privacy.json").read_text())["guarantees"]
    assert rows[0]["epsilon"] > 1


def test_auto_says_why_it_falls_back(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    outcome = run("num_rounds=1", "strategy.learning_rate=2")
    assert outcome.summary["sensitivity"] == "whole_update"
    assert outcome.summary["noise_std"] > 1
    (line,) = [r.getMessage() for r in caplog.records if "whole_update" in r.getMessage()]
    assert "learning_rates" in line
    assert run("num_rounds=1").summary["sensitivity"] == "convex"


def test_late_replies_do_not_change_the_bits_of_an_update(run: Run) -> None:
    outcome = run("num_rounds=6", "faults.late_rate=0.5")
    assert outcome.summary["uplink_bits_per_parameter"] == pytest.approx(8 * 654 / 650)


def test_an_output_folder_that_cannot_be_written_fails_before_the_first_round(
    tmp_path: Path,
) -> None:
    from fl_app.run_store import RunStore

    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"):
        RunStore(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_stops_after_the_round_and_leaves_a_whole_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import signal

    number = signal.Signals[name]
    from fl_app.federated_run import FederatedRun

    original = FederatedRun._on_round

    def interrupt_in_round_two(self, outcome, evaluation):  # type: ignore[no-untyped-def]
        if outcome.server_round == 2:
            signal.raise_signal(number)
        return original(self, outcome, evaluation)

    monkeypatch.setattr(FederatedRun, "_on_round", interrupt_in_round_two)
    before = signal.getsignal(number)
    outcome = run("num_rounds=9")
    assert outcome.summary["num_rounds"] == 2
    assert outcome.summary["interrupted"] is True
    assert signal.getsignal(number) is before


@pytest.mark.skipif(not (SHARED_DATA / "mnist").is_dir(), reason="MNIST is not in shared/data")
def test_mnist_with_two_digits_a_client(run: Run) -> None:
    outcome = run(
        "experiment=mnist_two_digits", f"data.root={SHARED_DATA / 'mnist'}", "num_rounds=3",
        "strategy.num_levels=10",
    )  # fmt: skip
    assert outcome.summary["num_parameters"] == 7850
    per_update = outcome.rows[1]["uplink_bytes"] / outcome.rows[1]["num_replies"]
    assert 39_282 <= 8 * per_update <= 39_282 + 512
    assert outcome.summary["test_accuracy"] > 0.3


@pytest.mark.slow
def test_accuracy_over_ten_seeds(run: Run) -> None:
    """Digits at a total epsilon of 8: QSGD costs at most .01, and .86 is reached."""
    plain = ("strategy.quantizer=none", "strategy.num_levels=null")
    quantised = [run(f"seed={seed}").summary["test_accuracy"] for seed in range(10)]
    unquantised = [run(f"seed={seed}", *plain).summary["test_accuracy"] for seed in range(10)]
    assert np.mean(quantised) >= 0.86
    assert np.mean(quantised) >= np.mean(unquantised) - 0.01
