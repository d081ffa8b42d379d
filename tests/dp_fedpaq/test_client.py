"""The client: what leaves it, and what it never does twice."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from strategies.device_state import ContextState
from strategies.dp_fedpaq.client import train
from strategies.dp_fedpaq.messages import REFUSED, parse_reply
from tests.dp_fedpaq.one_client import Make, ledger, never, parameters, update_of


def test_the_upload_is_the_clipped_update_when_no_noise_is_asked(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    chosen, trainer = parameters(noise_multiplier=0.0), make_trainer()
    reply = train(make_request(chosen), context, num_records=20, local_update=trainer)
    assert update_of(reply, chosen, 4) == pytest.approx(np.full(4, 0.5))
    (work,) = trainer.work
    assert [len(batch) for batch in work.batches] == [4, 4]
    assert len(np.unique(np.concatenate(work.batches))) == 8
    assert (work.batch_size, work.learning_rate, work.float64) == (4, 0.1, False)


def test_a_private_reply_holds_nothing_but_the_upload(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    chosen = parameters(randomness="secret")
    reply = train(make_request(chosen), context, num_records=20, local_update=make_trainer())
    assert set(reply.content) == {"arrays", "metrics"}
    assert list(reply.content["arrays"]) == ["update"]
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


def test_a_seeded_experiment_reports_its_loss_and_repeats_its_upload(
    make_request: Make, make_trainer: type
) -> None:
    chosen = parameters()
    uploads = []
    for _ in range(2):
        fresh = Context(1, 7, {"partition-id": 3, "num-partitions": 5}, RecordDict(), {})
        reply = train(make_request(chosen), fresh, num_records=20, local_update=make_trainer())
        assert parse_reply(reply).train_loss == 0.25
        uploads.append(parse_reply(reply).upload)
    assert uploads[0] == uploads[1]
    other = Context(1, 7, {"partition-id": 4, "num-partitions": 5}, RecordDict(), {})
    reply = train(make_request(chosen), other, num_records=20, local_update=make_trainer())
    assert parse_reply(reply).upload != uploads[0]


def test_a_secret_upload_never_repeats(make_request: Make, make_trainer: type) -> None:
    chosen, uploads = parameters(randomness="secret"), set()
    for _ in range(3):
        fresh = Context(1, 7, {"partition-id": 3, "num-partitions": 5}, RecordDict(), {})
        reply = train(make_request(chosen), fresh, num_records=20, local_update=make_trainer())
        uploads.add(parse_reply(reply).upload)
    assert len(uploads) == 3


def test_an_earlier_round_is_refused(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    for randomness in ("secret", "seeded"):
        chosen, trainer = parameters(randomness=randomness), make_trainer()
        fresh = Context(1, 7, dict(context.node_config), RecordDict(), {})
        train(make_request(chosen, 5), fresh, num_records=20, local_update=trainer)
        for server_round in (4, 1):
            request = make_request(chosen, server_round)
            reply = train(request, fresh, num_records=never, local_update=trainer)
            assert reply.error.code == REFUSED
        assert len(trainer.work) == 1


def test_a_repeated_request_gets_the_same_bytes_and_is_not_charged(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    """Fresh noise on a retry would average out."""
    for randomness in ("secret", "seeded"):
        chosen, trainer = parameters(randomness=randomness), make_trainer()
        fresh = Context(1, 7, dict(context.node_config), RecordDict(), {})
        secret = randomness == "secret"
        uploads = []
        for repeat in range(4):
            records = never if repeat and secret else 20
            reply = train(make_request(chosen, 5), fresh, num_records=records, local_update=trainer)
            uploads.append(parse_reply(reply).upload)
            assert dict(reply.content["metrics"]).keys() == (
                {"num-examples"} if secret else {"num-examples", "train-loss"}
            )
        assert len(set(uploads)) == 1
        assert ledger(fresh).participations == 1
        assert len(trainer.work) == (1 if secret else 4)


def test_a_repeated_request_that_is_another_is_refused_in_a_secret_run(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    """The same noise under another model would give the difference of two updates away."""
    chosen, trainer = parameters(randomness="secret"), make_trainer()
    first = {"w": np.zeros(4, np.float32), "v": np.zeros(2, np.float32)}
    others = [
        {"w": np.array([0, 0, 0, 1e-7], np.float32), "v": first["v"]},
        {"w": first["w"], "v": np.ones(2, np.float32)},
        {"w": np.zeros((2, 2), np.float32), "v": first["v"]},
        {"u": first["w"], "v": first["v"]},
        {"v": first["v"], "w": first["w"]},
        {"w": np.zeros(6, np.float32)},
    ]
    train(make_request(chosen, 5, first), context, num_records=20, local_update=trainer)
    for other in others:
        request = make_request(chosen, 5, other)
        reply = train(request, context, num_records=never, local_update=trainer)
        assert reply.error.code == REFUSED
    reply = train(make_request(chosen, 5, first), context, num_records=never, local_update=trainer)
    assert parse_reply(reply).upload
    reply = train(make_request(chosen, 6, first), context, num_records=20, local_update=trainer)
    assert parse_reply(reply).upload
    assert (ledger(context).participations, len(trainer.work)) == (2, 2)


@pytest.mark.parametrize("randomness", ["secret", "seeded"])
def test_the_last_participation_may_be_repeated_too(
    make_request: Make, context: Context, make_trainer: type, randomness: str
) -> None:
    chosen = parameters(randomness=randomness, num_participations=1)
    for _ in range(2):
        request = make_request(chosen, 3)
        reply = train(request, context, num_records=20, local_update=make_trainer())
        assert parse_reply(reply).upload
    reply = train(make_request(chosen, 4), context, num_records=20, local_update=make_trainer())
    assert parse_reply(reply).upload is None


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("randomness", ["secret", "seeded"])
@pytest.mark.parametrize("moment", ["reading data", "training"])
def test_a_request_is_repeated_after_the_client_was_killed(
    make_request: Make, context: Context, make_trainer: type, randomness: str, moment: str
) -> None:
    """Once it is charged, however often it is tried; a secret draw that was begun is given up."""

    def die(*_: object) -> int:
        raise KilledError

    chosen, trainer = parameters(randomness=randomness), make_trainer()
    whole = Context(1, 7, dict(context.node_config), RecordDict(), {})
    expected = train(make_request(chosen, 2), whole, num_records=20, local_update=trainer)
    for _ in range(2):
        records, work = (die, trainer) if moment == "reading data" else (20, die)
        if randomness == "secret" and ledger(context).participations:
            break
        with pytest.raises(KilledError):
            train(make_request(chosen, 2), context, num_records=records, local_update=work)
    reply = train(make_request(chosen, 2), context, num_records=20, local_update=trainer)
    if randomness == "seeded":
        assert parse_reply(reply).upload == parse_reply(expected).upload
    else:
        assert reply.has_error() == (moment == "training")
    assert ledger(context).participations == 1


def test_only_the_last_reply_of_a_secret_run_is_kept(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    chosen = parameters(randomness="secret")
    for server_round in (1, 2):
        request = make_request(chosen, server_round)
        reply = train(request, context, num_records=20, local_update=make_trainer())
        assert ledger(context).reply == parse_reply(reply).upload
    train(make_request(chosen, 3), context, num_records=7, local_update=make_trainer())
    assert ledger(context).reply == b""
    seeded = Context(1, 7, dict(context.node_config), RecordDict(), {})
    train(make_request(parameters()), seeded, num_records=20, local_update=make_trainer())
    assert ledger(seeded).reply == b""


def test_the_state_that_is_given_is_used(
    make_request: Make, context: Context, make_trainer: type
) -> None:
    elsewhere = Context(1, 7, {}, RecordDict(), {})
    reply = train(
        make_request(parameters()),
        context,
        num_records=20,
        local_update=make_trainer(),
        state=ContextState(elsewhere),
    )
    assert parse_reply(reply).upload
    assert ledger(elsewhere).participations == 1
    assert not context.state
