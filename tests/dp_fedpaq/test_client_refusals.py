"""The client: what it refuses, and failures that look like any other upload."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from scipy.stats import chi2

from strategies.dp_fedpaq.client import train
from strategies.dp_fedpaq.messages import FAILED, REFUSED, parse_reply
from tests.dp_fedpaq.one_client import Make, ledger, never, parameters, update_of
from tests.softmax_training import SOFTMAX


def test_the_planned_participations_are_never_exceeded(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    chosen, trainer = parameters(), make_trainer()
    for server_round in range(1, 9):
        reply = train(
            make_request(chosen, server_round), context, num_records=20, local_update=trainer
        )
        assert (parse_reply(reply).upload is None) == (server_round > 3)
    assert len(trainer.work) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": 0.5},
        {"num_participations": 1000},
        {"clipping_norm": 100.0},
        {"randomness": "secret"},
    ],
)
def test_terms_cannot_change_within_a_run(
    make_request: Make, context: Context, make_trainer: type, changes: dict[str, object]
) -> None:
    trainer = make_trainer()
    train(make_request(parameters(), 1), context, num_records=20, local_update=trainer)
    changed = make_request(parameters(**changes), 2)
    reply = train(changed, context, num_records=never, local_update=trainer)
    assert reply.error.code == REFUSED
    assert len(trainer.work) == 1


def test_a_client_with_too_few_records_sits_out_and_is_not_charged(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    trainer = make_trainer()
    reply = train(make_request(parameters()), context, num_records=7, local_update=trainer)
    assert parse_reply(reply).upload is None
    assert not trainer.work
    assert ledger(context).participations == 0
    # Its size is public, but not to be had number by number from changed parameters.
    smaller = make_request(parameters(batch_size=3), 2)
    reply = train(smaller, context, num_records=never, local_update=trainer)
    assert reply.error.code == REFUSED


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": "client"},
        {"unit": "client", "neighboring_relation": "zero_out"},
        {"neighboring_relation": "add_or_remove_one", "local_steps": None, "local_epochs": 1},
    ],
)
@pytest.mark.parametrize("records", [0, 1])
def test_where_the_size_is_secret_too_few_records_look_like_any_other_upload(
    make_request: Make, context: Context, changes: dict[str, object], records: int
) -> None:
    def trainer(work):  # type: ignore[no-untyped-def]
        return {name: array + 100.0 for name, array in work.arrays.items()}, 1.0

    chosen = parameters(randomness="secret", **changes)
    request = make_request(chosen, 1, {"w": np.zeros(50_000, dtype=np.float32)})
    reply = train(request, context, num_records=records, local_update=trainer)
    update = update_of(reply, chosen, 50_000)
    std = chosen.sensitivity_in_round(1).value
    if records < chosen.min_records:
        assert has_variance(update, std**2)
    assert ledger(context).participations == 1


def test_what_the_client_does_not_accept_is_refused_before_data_is_read(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    reply = train(
        make_request(parameters()),
        context,
        num_records=never,
        local_update=make_trainer(),
        accepts=lambda given: given.noise_multiplier > 2,
    )
    assert reply.error.code == REFUSED
    assert not context.state


def test_the_terms_of_the_application_cannot_change_within_a_run(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    trainer = make_trainer()
    for server_round, terms, refused in ((1, "a", False), (2, "b", True), (3, "a", False)):
        reply = train(
            make_request(parameters(), server_round),
            context,
            num_records=20,
            local_update=trainer,
            terms=terms,
        )
        assert reply.has_error() == refused


def test_data_that_cannot_be_read_are_an_error_without_its_text(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    def unreadable() -> int:
        raise ValueError("record 17 has label 77")

    for randomness in ("seeded", "secret"):
        request = make_request(parameters(randomness=randomness))
        fresh = Context(1, 7, {"partition-id": 3, "num-partitions": 5}, RecordDict(), {})
        reply = train(request, fresh, num_records=unreadable, local_update=make_trainer())
        assert reply.error.code == FAILED
        assert "77" not in reply.error.reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused_before_data_is_read(
    make_request: Make, context: Context, make_trainer: type, value: float
) -> None:
    request = make_request(parameters(), 1, {"w": np.array([0.0, value], dtype=np.float32)})
    reply = train(request, context, num_records=never, local_update=make_trainer())
    assert reply.error.code == REFUSED


def test_under_the_convex_bound_large_models_are_refused_before_data_is_read(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    chosen = parameters(sensitivity="convex", training=SOFTMAX, batch_size=16)
    for value, refused in ((1.1e4, True), (-1.1e4, True), (9e3, False)):
        request = make_request(chosen, 1, {"w": np.array([value], dtype=np.float32)})
        records = never if refused else 100
        reply = train(request, context, num_records=records, local_update=make_trainer())
        assert reply.has_error() == refused


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("arrays"),
        lambda c: c.pop("config"),
        lambda c: c["config"].pop("server-round"),
        lambda c: c["config"].pop("dp-fedpaq"),
        lambda c: c["config"].update({"server-round": 0}),
        lambda c: c["config"].update({"server-round": "1"}),
        lambda c: c["config"].update({"dp-fedpaq": "{}"}),
        lambda c: c["config"].update({"dp-fedpaq": "not json"}),
        lambda c: c.update({"arrays": ConfigRecord()}),
        lambda c: c.update({"arrays": ArrayRecord({"w": _broken_array()})}),
    ],
)
def test_a_bad_request_is_refused_without_a_word_about_data(
    make_request: Make, context: Context, make_trainer: type, damage: Callable[[RecordDict], object]
) -> None:
    request = make_request(parameters())
    damage(request.content)
    reply = train(request, context, num_records=never, local_update=make_trainer())
    assert reply.error.code == REFUSED
    assert reply.error.reason == "request refused by the client"


def _broken_array():  # type: ignore[no-untyped-def]
    from flwr.app import Array

    return Array("float32", (2,), "numpy.ndarray", b"not an array")


def test_a_hostile_parameter_is_refused(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    request = make_request(parameters())
    values = json.loads(str(request.content["config"]["dp-fedpaq"]))
    for key, value in (("noise_multiplier", -1.0), ("clipping_norm", None), ("batch_size", 0)):
        request.content["config"]["dp-fedpaq"] = json.dumps({**values, key: value})
        reply = train(request, context, num_records=never, local_update=make_trainer())
        assert reply.error.code == REFUSED


def has_variance(numbers: np.ndarray, variance: float) -> bool:
    total = float(np.sum(numbers**2)) / variance
    low, high = chi2.ppf([5e-7, 1 - 5e-7], numbers.size)
    return bool(low < total < high)


@pytest.mark.parametrize("kind", ["raises", "nan", "missing", "shape"])
def test_a_failure_that_may_depend_on_data_looks_like_any_other_upload(
    make_request: Make, context: Context, make_trainer: type, kind: str
) -> None:
    def trainer(work):  # type: ignore[no-untyped-def]
        if kind == "raises":
            raise RuntimeError("record 17 says: secret")
        if kind == "nan":
            return {"w": work.arrays["w"] * np.nan}, float("nan")
        return ({} if kind == "missing" else {"w": np.zeros(3, np.float32)}), 1.0

    chosen = parameters(randomness="secret")
    request = make_request(chosen, 1, {"w": np.zeros(50_000, dtype=np.float32)})
    reply = train(request, context, num_records=20, local_update=trainer)
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert has_variance(update_of(reply, chosen, 50_000), 2.0**2)


def test_without_noise_a_failure_is_an_error_without_its_text(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    trainer = make_trainer(error=RuntimeError("record 17 says: secret"))
    request = make_request(parameters(noise_multiplier=0.0))
    reply = train(request, context, num_records=20, local_update=trainer)
    assert reply.error.code == FAILED
    assert "secret" not in reply.error.reason


def test_a_crash_during_training_leaves_the_round_charged(
    make_request: Make, context: Context
) -> None:
    def trainer(work):  # type: ignore[no-untyped-def]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_request(parameters(), 2), context, num_records=20, local_update=trainer)
    assert (ledger(context).last_round, ledger(context).participations) == (2, 1)


def test_integers_stay_out_and_every_float_is_sent_once(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    chosen = parameters(noise_multiplier=0.0, clipping_norm=None)
    arrays = {
        "w": np.zeros((2, 2), np.float32),
        "half": np.zeros(3, np.float16),
        "scalar": np.array(0.0),
        "empty": np.zeros((0, 3), np.float32),
        "counter": np.array(4),
    }
    request = make_request(chosen, 1, arrays)
    reply = train(request, context, num_records=20, local_update=make_trainer(2.0))
    assert update_of(reply, chosen, 8) == pytest.approx(np.full(8, 2.0))


DP_SGD: dict[str, object] = {
    "mechanism": "dp_sgd",
    "neighboring_relation": "add_or_remove_one",
    "sampling": "poisson",
    "sample_rate": 0.5,
    "max_grad_norm": 3.0,
    "clipping_norm": None,
    "local_steps": 4,
    "batch_size": 8,
    "learning_rate": 0.5,
    "quantizer": "none",
    "noise_multiplier": 2.0,
    "randomness": "secret",
}


@pytest.mark.parametrize("kind", ["noise alone", "fails"])
def test_dp_sgd_adds_noise_to_the_sum_of_every_step(
    make_request: Make, context: Context, kind: str
) -> None:
    def trainer(work):  # type: ignore[no-untyped-def]
        if kind == "fails":
            raise RuntimeError("record 17 says: secret")
        assert work.max_grad_norm == 3.0
        model = work.arrays["w"].astype(float)
        for step, _ in enumerate(work.batches):
            model -= work.learning_rate * work.step_noise(step, model.size) / work.batch_size
        return {"w": model}, 0.5

    chosen = parameters(**DP_SGD)
    request = make_request(chosen, 1, {"w": np.zeros(50_000, dtype=np.float64)})
    reply = train(request, context, num_records=20, local_update=trainer)
    # Four steps, each z C eta / b: 2 * 3 * .5 / 8.
    assert has_variance(update_of(reply, chosen, 50_000), 4 * (2.0 * 3.0 * 0.5 / 8) ** 2)


@pytest.mark.parametrize("steps", [[], [0, 1, 2], [0, 1, 1, 3], [1, 0, 2, 3], [0, 1, 2, 3, 3]])
def test_an_update_that_left_out_its_noise_is_not_sent(
    make_request: Make, context: Context, steps: list[int]
) -> None:
    def trainer(work):  # type: ignore[no-untyped-def]
        for step in steps:
            work.step_noise(step, 4)
        return {"w": work.arrays["w"] + 2.5}, 0.5

    reply = train(make_request(parameters(**DP_SGD)), context, num_records=20, local_update=trainer)
    assert reply.error.code == FAILED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"sensitivity": "convex", "training": SOFTMAX}, True),
        (
            {
                "sensitivity": "one_step",
                "training": SOFTMAX,
                "local_steps": 1,
                "max_grad_norm": 1.0,
            },
            True,
        ),
        (DP_SGD, False),
    ],
)
def test_what_is_proven_for_float64_is_asked_for_in_float64(
    make_request: Make,
    context: Context,
    make_trainer: type,
    changes: dict[str, object],
    expected: bool,
) -> None:
    trainer = make_trainer()
    chosen = parameters(**changes)
    train(make_request(chosen), context, num_records=20, local_update=trainer)
    assert [work.float64 for work in trainer.work] == [expected]


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_a_seeded_client_says_that_its_training_diverged(
    make_request: Make, context: Context, randomness: str
) -> None:
    def trainer(work):  # type: ignore[no-untyped-def]
        return {"w": work.arrays["w"] * np.nan}, float("nan")

    request = make_request(parameters(randomness=randomness))
    reply = parse_reply(train(request, context, num_records=20, local_update=trainer))
    assert reply.upload
    assert reply.train_loss is None
    assert reply.local_failure == (randomness == "seeded")
