"""A run of NISS that is killed between any two messages goes on; no key is used twice."""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from fl_app.asked_clients import read_asked
from fl_app.checkpoint import read_checkpoint
from fl_app.device_state import list_entries
from fl_app.engines.client_node import FIRST_NODE_ID, ClientNodes
from strategies.niss.messages import READY, REGISTER, UPLOAD
from tests.conftest import Outcome, read_outcome
from tests.integration.test_resume import Command, assert_same, has_rows

pytestmark = pytest.mark.usefixtures("no_report")

ROUNDS, CLIENTS = 4, 5
SECRET = (
    *("strategy=niss", f"num_rounds={ROUNDS}", f"num_clients={CLIENTS}", "randomness=secret"),
    *("strategy.max_participations=9", "strategy.batch_size=4"),
)


EVERYBODY = set(range(CLIENTS))


class Watched:
    """Writes down what passes in whatever process, and ends it at one message."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes = folder / "notes.jsonl"
        self.killed_at: tuple[str, int, int, int] | None = None
        answer = ClientNodes.answer

        def watched(
            nodes: ClientNodes, message: Message, state: RecordDict | None
        ) -> tuple[Message, RecordDict | None]:
            server_round, attempt, phase = message.metadata.group_id.split(".")
            client = message.metadata.dst_node_id - FIRST_NODE_ID
            reply, kept = answer(nodes, message, state)
            asked = message.content["config"]
            told = reply.content.get("config", {}) if reply.has_content() else {}
            note = {
                "round": int(server_round),
                "attempt": int(attempt),
                "phase": phase,
                "client": client,
                "nonce": told["nonce"].hex() if "nonce" in told else None,  # type: ignore[union-attr]
                "ready": asked["ready-set"].hex() if phase == UPLOAD else None,  # type: ignore[union-attr]
                "answered": reply.has_content() and (phase != UPLOAD or "arrays" in reply.content),
            }
            with self.notes.open("a") as file:
                file.write(json.dumps(note) + "\n")
            if self.killed_at == (phase, int(server_round), int(attempt), client):
                os.kill(os.getpid(), signal.SIGKILL)
            return reply, kept

        monkeypatch.setattr(ClientNodes, "answer", watched)

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    def uploads(self) -> list[dict[str, Any]]:
        return [each for each in self.read() if each["phase"] == UPLOAD and each["answered"]]


@pytest.fixture(scope="module")
def planned_epsilon(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Return what a run that nobody disturbs spends, for each adversary."""
    found = {}
    for kind in ("gaussian", "uniform"):
        folder = tmp_path_factory.mktemp(kind)
        words = (*SECRET, f"strategy.pair_noise={kind}", "hydra.run.dir=run")
        assert Command(*words, folder=folder).finish() == 0
        found[kind] = [row["epsilon"] for row in read_privacy(folder / "run")]
        assert count_keys(folder / "run") == 0
    return found


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def tally_of(folder: Path) -> dict[int, int]:
    checkpoint = read_checkpoint(folder / "checkpoint")
    assert checkpoint is not None
    return dict(checkpoint.strategy["tally"]["uploads"])


def ledger_of(folder: Path) -> dict[int, int]:
    return {each.client: each.entry.participations for each in list_entries(folder / "checkpoint")}


def count_keys(folder: Path) -> int:
    with sqlite3.connect(folder / "checkpoint" / "devices.sqlite") as connection:
        (count,) = connection.execute("SELECT count(*) FROM keys").fetchone()
    return int(count)


def read_privacy(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "privacy.json").read_text())["guarantees"]
    return found


def assert_no_key_is_used_twice(uploads: Iterable[dict[str, Any]], notes: list[dict]) -> None:
    """A key is a function of the pair, the round, the attempt and both nonces."""
    told = {(n["client"], n["round"], n["attempt"]): n["nonce"] for n in notes if n["nonce"]}
    used = Counter((each["client"], each["round"], each["attempt"]) for each in uploads)
    assert set(used.values()) == {1}
    nonces = Counter(told[key] for key in used)
    assert set(nonces.values()) == {1}
    # A nonce stands for one attempt, however often it was told.
    by_nonce = {(n["nonce"], n["client"], n["round"], n["attempt"]) for n in notes if n["nonce"]}
    assert len({nonce for nonce, *_ in by_nonce}) == len(by_nonce)


# Where the process ends: phase, round, attempt, after which client's answer; and by that, the
# attempt in which the round is asked next, and the uploads that are charged in vain.
LAST = CLIENTS - 1


MOMENTS = {
    "while registering": ((REGISTER, 1, 1, 2), 1, set()),
    "all registered": ((REGISTER, 1, 1, LAST), 1, set()),
    "some ready": ((READY, 2, 1, 1), 1, set()),
    "all ready": ((READY, 2, 1, LAST), 1, set()),
    "all ready in round 1": ((READY, 1, 1, LAST), 1, set()),
    "first upload": ((UPLOAD, 2, 1, 0), 2, EVERYBODY),
    "some uploads": ((UPLOAD, 2, 1, 2), 2, EVERYBODY),
    "all uploads": ((UPLOAD, 2, 1, LAST), 2, EVERYBODY),
    "all uploads of round 1": ((UPLOAD, 1, 1, LAST), 2, EVERYBODY),
    "all uploads of the last round": ((UPLOAD, ROUNDS, 1, LAST), 2, EVERYBODY),
}


FAST = ("all registered", "some uploads", "all uploads of round 1")


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        pytest.param(
            *(moment, kind),
            marks=[] if moment in FAST and kind == "gaussian" else [pytest.mark.slow],
        )
        for moment in MOMENTS
        for kind in ("gaussian", "uniform")
    ],
)
def test_a_secret_run_killed_between_two_messages(
    watched: Watched,
    planned_epsilon: dict[str, list[float]],
    tmp_path: Path,
    moment: str,
    kind: str,
) -> None:
    killed_at, attempt, charged = MOMENTS[moment]
    watched.killed_at = killed_at
    phase, at, *_ = killed_at
    words = (*SECRET, f"strategy.pair_noise={kind}", "hydra.run.dir=run")
    assert Command(*words, folder=tmp_path).finish() == -signal.SIGKILL
    folder = tmp_path / "run"
    asked = read_asked(folder / "checkpoint")
    # Only who is asked for an upload is noted: nobody is charged for saying that it is ready.
    assert (asked.server_round if asked else 0) == (at if charged else at - 1)
    before = read_privacy(folder)
    told = max((row["epsilon"] for row in before), default=0.0)
    watched.killed_at = None
    last = Command("resume=run", folder=tmp_path)
    assert last.finish() == 0, last.output.read_text()
    outcome = read_outcome(folder)
    assert [row["round"] for row in outcome.rows] == list(range(ROUNDS + 1))
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS] * ROUNDS
    attempts = {row["round"]: row["num_attempts"] for row in outcome.rows[1:]}
    assert attempts == {**dict.fromkeys(range(1, ROUNDS + 1), 1), at: attempt}
    notes = watched.read()
    assert_no_key_is_used_twice(watched.uploads(), notes)
    tally = tally_of(folder)
    assert tally == {client: ROUNDS + (client in charged) for client in EVERYBODY}
    sent = Counter(each["client"] for each in watched.uploads())
    assert ledger_of(folder) == dict(sent)
    assert all(sent[client] <= tally[client] for client in EVERYBODY)
    # What the interrupted attempt gave away was said before it was asked for, and stays said.
    rows = read_privacy(folder)
    assert all(row["epsilon"] >= told for row in rows)
    assert [row["valid"] for row in rows] == [False, True, True]
    more = [row["epsilon"] > least for row, least in zip(rows, planned_epsilon[kind], strict=True)]
    assert more == [bool(charged)] * 3
    assert count_keys(folder) == 0
    registered = [each["client"] for each in notes if each["phase"] == REGISTER]
    assert set(registered) == EVERYBODY
    assert phase == REGISTER or len(registered) <= 3 * CLIENTS


def test_attempts_before_the_last_are_charged_too(watched: Watched, tmp_path: Path) -> None:
    """Killed in the second try of a round: both tries were asked for, and count."""
    # A client that vanishes in every first try of round 2.
    faults = ("faults.drop_after_ready=0.25", "faults.seed=1")
    words = (*SECRET, "strategy.pair_noise=uniform", "strategy.max_participations=30", *faults)
    whole = Command(*words, "hydra.run.dir=whole", folder=tmp_path)
    assert whole.finish() == 0
    tries = [row["num_attempts"] for row in read_outcome(tmp_path / "whole").rows[1:]]
    at = next(n for n, count in enumerate(tries, start=1) if count > 1)
    second = [
        each["client"]
        for each in watched.read()
        if (each["phase"], each["round"], each["attempt"]) == (UPLOAD, at, 2)
    ]
    watched.notes.unlink()
    watched.killed_at = (UPLOAD, at, 2, second[-1])
    assert Command(*words, "hydra.run.dir=run", folder=tmp_path).finish() == -signal.SIGKILL
    asked = read_asked(tmp_path / "run" / "checkpoint")
    assert asked is not None
    assert (asked.server_round, asked.attempt) == (at, 2)
    assert asked.uploads == dict.fromkeys(EVERYBODY, 2)
    watched.killed_at = None
    assert Command("resume=run", folder=tmp_path).finish() == 0
    outcome = read_outcome(tmp_path / "run")
    assert outcome.rows[at]["num_attempts"] >= 3
    tried = sum(row["num_attempts"] for row in outcome.rows[1:])
    assert tally_of(tmp_path / "run") == dict.fromkeys(EVERYBODY, tried)
    sent = Counter(each["client"] for each in watched.uploads())
    assert ledger_of(tmp_path / "run") == dict(sent)
    assert_no_key_is_used_twice(watched.uploads(), watched.read())


def test_a_seeded_run_killed_in_the_second_try_of_a_round(
    run: Callable[..., Outcome], watched: Watched, tmp_path: Path
) -> None:
    """Both tries are computed again, and neither is charged twice."""
    words = (
        *(*SECRET, "randomness=seeded", "strategy.pair_noise=uniform", "faults.seed=1"),
        *("strategy.max_participations=30", "faults.drop_after_ready=0.25"),
    )
    whole = run(*words)
    tries = [row["num_attempts"] for row in whole.rows[1:]]
    at = next(n for n, count in enumerate(tries, start=1) if count > 1)
    second = [
        each["client"]
        for each in watched.read()
        if (each["phase"], each["round"], each["attempt"]) == (UPLOAD, at, 2)
    ]
    watched.killed_at = (UPLOAD, at, 2, second[-1])
    assert Command(*words, "hydra.run.dir=run", folder=tmp_path).finish() == -signal.SIGKILL
    watched.killed_at = None
    assert Command("resume=run", folder=tmp_path).finish() == 0
    assert_same(read_outcome(tmp_path / "run"), whole)
    assert ledger_of(tmp_path / "run") == ledger_of(whole.folder)


@pytest.mark.slow
def test_killed_twice_in_the_same_round(watched: Watched, tmp_path: Path) -> None:
    watched.killed_at = (UPLOAD, 2, 1, LAST)
    words = (*SECRET, "strategy.max_attempts=4", "hydra.run.dir=run")
    assert Command(*words, folder=tmp_path).finish() == -signal.SIGKILL
    for attempt in (2, 3):
        watched.killed_at = (UPLOAD, 2, attempt, LAST)
        assert Command("resume=run", folder=tmp_path).finish() == -signal.SIGKILL
    watched.killed_at = (READY, 2, 4, LAST)
    assert Command("resume=run", folder=tmp_path).finish() == -signal.SIGKILL
    watched.killed_at = None
    assert Command("resume=run", folder=tmp_path).finish() == 0
    folder = tmp_path / "run"
    assert [row["num_attempts"] for row in read_outcome(folder).rows[1:]] == [1, 4, 1, 1]
    assert tally_of(folder) == ledger_of(folder) == dict.fromkeys(EVERYBODY, ROUNDS + 3)
    assert_no_key_is_used_twice(watched.uploads(), watched.read())


@pytest.mark.slow
def test_killed_in_the_last_try_a_round_is_given_up(watched: Watched, tmp_path: Path) -> None:
    """Its uploads stay charged, and no round costs a client more of them than it may have tries."""
    watched.killed_at = (UPLOAD, 2, 1, LAST)
    words = (*SECRET, "strategy.max_attempts=2", "hydra.run.dir=run")
    assert Command(*words, folder=tmp_path).finish() == -signal.SIGKILL
    watched.killed_at = (UPLOAD, 2, 2, LAST)
    assert Command("resume=run", folder=tmp_path).finish() == -signal.SIGKILL
    watched.killed_at = None
    assert Command("resume=run", folder=tmp_path).finish() == 0
    folder = tmp_path / "run"
    outcome = read_outcome(folder)
    assert [row["num_attempts"] for row in outcome.rows[1:]] == [1, 2, 1, 1]
    assert [row["num_replies"] for row in outcome.rows[1:]] == [CLIENTS, 0, CLIENTS, CLIENTS]
    assert tally_of(folder) == ledger_of(folder) == dict.fromkeys(EVERYBODY, ROUNDS + 1)
    assert_no_key_is_used_twice(watched.uploads(), watched.read())
    assert "round 2: given up after 2 tries (max_attempts)" in (folder / "run.log").read_text()


@pytest.mark.parametrize("randomness", ["secret", pytest.param("seeded", marks=pytest.mark.slow)])
def test_ctrl_c_ends_the_run_after_its_round_and_it_goes_on(
    watched: Watched, tmp_path: Path, randomness: str
) -> None:
    words = (*SECRET, f"randomness={randomness}", "num_rounds=30", "strategy.max_participations=30")
    command = Command(*words, "hydra.run.dir=run", folder=tmp_path)
    deadline = time.monotonic() + 120
    while not has_rows(tmp_path / "run", 3):
        assert time.monotonic() < deadline
        assert command.poll() is None
        time.sleep(0.001)
    os.kill(command.number, signal.SIGINT)
    assert command.finish() == 1
    assert "interrupted" in command.output.read_text()
    folder = tmp_path / "run"
    outcome = read_outcome(folder)
    done = len(outcome.rows) - 1
    assert outcome.summary["interrupted"]
    assert 2 <= done < 30
    assert tally_of(folder) == ledger_of(folder) == dict.fromkeys(EVERYBODY, done)
    assert count_keys(folder) > 0  # needed to go on
    assert Command("resume=run", folder=tmp_path).finish() == 0
    assert tally_of(folder) == ledger_of(folder) == dict.fromkeys(EVERYBODY, 30)
    assert [row["num_attempts"] for row in read_outcome(folder).rows[1:]] == [1] * 30
    assert_no_key_is_used_twice(watched.uploads(), watched.read())
    assert count_keys(folder) == 0
