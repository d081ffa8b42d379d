"""Whole runs of mode `paper` on the bundled digits, and what a client refuses of it."""

import math
from dataclasses import replace

import pytest
from flwr.app import Context, RecordDict

from fl_app.engines.flower_internals import deliver, identify_process
from fl_app.errors import ConfigError
from fl_app.local_task import LocalTask
from strategies.mechanisms.fixed_point import FixedPoint, wrap
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss import client as niss_client
from strategies.niss.attempt_noise import check_noise
from strategies.niss.messages import READY, REGISTER, Request, build_request
from strategies.niss.parameters import NissParameters
from strategies.niss.published_round import PublishedNoise
from tests.niss.published_clients import build_parameters

SHORT = ("num_rounds=2", "num_clients=5", "strategy=niss_paper")


def test_with_tau_0_a_run_is_fedavg_over_the_rounded_updates_bit_for_bit(run, monkeypatch):
    """Whatever the shares are: their number, and whether there are any."""
    offset = run(*SHORT, "strategy.tau=0")
    fewer = run(*SHORT, "strategy.tau=0", "strategy.unit_noise_std=8")
    assert [row["residual_noise_std"] for row in offset.rows[1:]] == [0.0, 0.0]

    def only_round(noise, update, stream):
        del stream
        return wrap(noise.grid.encode(update * noise.weight))

    monkeypatch.setattr(PublishedNoise, "add_to", only_round)
    rounded = run(*SHORT, "strategy.tau=0")
    assert rounded.sha256 == offset.sha256 == fewer.sha256
    monkeypatch.setattr(
        FixedPoint, "encode", lambda grid, update: (update / grid.step).astype("i8")
    )
    assert run(*SHORT, "strategy.tau=0").sha256 != offset.sha256


def test_other_factors_give_other_models_and_seeds_the_same(run):
    one, again, other = (run(*SHORT, f"strategy.tau={tau}").sha256 for tau in (0.5, 0.5, 0.6))
    assert one == again != other


def test_with_tau_1_as_much_noise_is_left_as_in_dp_fedavg(run):
    offset = run(*SHORT, "strategy.tau=1")
    whole = run(*SHORT[:2], "strategy=niss_dp_fedavg")
    for one, other in zip(offset.rows[1:], whole.rows[1:], strict=True):
        assert one["residual_noise_std"] == pytest.approx(other["residual_noise_std"], rel=1e-3)


def test_the_noise_of_an_average_is_that_of_its_clients(run):
    """sigma_k / sqrt(5), sigma_k = 2 S sqrt(2 ln(1.25 / (delta / 2))) / (epsilon / 2)."""
    whole = run(*SHORT[:2], "strategy=niss_dp_fedavg", "strategy.clipping_norm=3")
    sigma = 2 * 3 * math.sqrt(2 * math.log(1.25 / 5e-6)) / 4
    stds = [row["residual_noise_std"] for row in whole.rows[1:]]
    assert stds == pytest.approx([sigma / math.sqrt(5)] * 2)


@pytest.mark.parametrize(("strategy", "float64"), [("niss_paper", False), ("niss", True)])
def test_training_is_in_float64_only_where_a_bound_needs_it(run, monkeypatch, strategy, float64):
    asked = []
    update = LocalTask.local_update

    def note(task, work):
        asked.append(work.float64)
        return update(task, work)

    monkeypatch.setattr(LocalTask, "local_update", note)
    run(
        *(*SHORT[:2], f"strategy={strategy}", "strategy.sensitivity=one_step"),
        *("strategy.max_grad_norm=1.0", "strategy.local_steps=1"),
    )
    assert asked == [float64] * 10


def test_the_report_of_a_run_names_no_epsilon_but_flaws(run):
    outcome = run(*SHORT)
    assert outcome.summary["epsilon"] is None
    assert [each["adversary"] for each in outcome.guarantees] == [
        *("server_and_colluders", "server", "model_user")
    ]
    assert not any(each["valid"] or each["epsilon"] for each in outcome.guarantees)
    assert "1 / (Sigma^-1)_kk" in outcome.guarantees[0]["why_not"]
    baseline = run(*SHORT[:2], "strategy=niss_dp_fedavg")
    assert 0.0 < baseline.summary["epsilon"] < 8.0
    assert not any(each["valid"] or each["epsilon"] for each in baseline.guarantees)


def test_weights_by_records_and_dropouts(run):
    uneven = run(
        *("num_rounds=3", "num_clients=5", "strategy=niss_paper", "strategy.weighting=examples"),
        *("data.partition.kind=dirichlet", "data.partition.min_records=70", "strategy.tau=0"),
        "faults.drop_after_ready=0.4",
    )
    lost = [row["num_dropped_after_ready"] for row in uneven.rows[1:]]
    assert any(lost)
    for row, number in zip(uneven.rows[1:], lost, strict=True):
        assert (row["residual_noise_std"] > 0.0) == (number > 0)
        assert row["num_replies"] == 5 - number


def test_a_unit_with_too_few_neighbours_is_said_once(run, caplog):
    run(*SHORT, "strategy.unit_noise_std=0.001")
    run(*SHORT, "strategy.unit_noise_std=8")
    said = [each for each in caplog.messages if "asks for more shares" in each]
    assert said == [
        "unit_noise_std: 0.001 asks for more shares than the 4 other clients of a round; "
        "shares are larger"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("strategy.tau=1.1",),
        ("strategy.unit_noise_std=0.0",),
        ("strategy.pair_noise=uniform",),
        ("strategy.target_epsilon=null", "strategy.noise_multiplier=1.0"),
    ],
)
def test_what_mode_paper_does_not_have_is_refused(run, words):
    with pytest.raises(ConfigError, match=r"tau|unit_noise_std|pair_noise|target_epsilon"):
        run(*SHORT, *words)


def test_noise_that_cannot_be_made_is_refused_before_anybody_is_asked():
    made = NissParameters(
        update=replace(build_parameters().update, target_epsilon=0.5, num_participations=1),
        base_noise_multiplier=5.0,
        **{"min_ready": 9000, "max_ready": 10_000, "num_clients": 10_000},
    )
    with pytest.raises(ParameterError):
        check_noise(made, 100)
    assert check_noise(build_parameters(), 100) == []


@pytest.mark.parametrize("phase", [REGISTER, READY])
def test_a_device_that_limits_epsilon_takes_no_part(phase):
    identify_process(1)
    request = Request(phase, 1, 1, build_parameters(), bytes(16))
    message = deliver(build_request(7, {}, request))
    context = Context(1, 7, {"partition-id": 3, "num-partitions": 5}, RecordDict(), {})

    def answer(**device):
        return niss_client.train(
            message,
            context,
            num_records=100,
            local_update=lambda work: (work.arrays, None),
            **device,
        )

    refused = answer(max_epsilon=100.0)
    assert refused.error.reason == "the run keeps to no epsilon"
    assert answer().has_content() == (phase == REGISTER)
