"""Nothing that the server sends or receives holds a secret of a pair; and how large it is."""

import base64
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.engines.in_process import InProcessGrid
from fl_app.engines.relay import GridRelay
from fl_app.server_app import app as server_app
from strategies.mechanisms import key_agreement
from strategies.mechanisms.pairwise_noise import gaussian_pair_noise
from strategies.niss import participant, upload
from strategies.niss.messages import READY, REGISTER, UPLOAD
from tests.conftest import read_outcome

CLIENTS, ROUNDS, PARAMETERS = 5, 2, 650


class Tap(GridRelay):
    """Keeps every message as its bytes, by what it is."""

    def __init__(self, grid: InProcessGrid) -> None:
        super().__init__(grid)
        self.partition_ids = grid.partition_ids
        self.messages: list[tuple[str, str, int, bytes]] = []
        self.ready_sets: list[int] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        for direction, each in [*(("down", m) for m in asked), *(("up", m) for m in replies)]:
            config = each.content.get("config") if each.has_content() else None
            phase = asked[0].content["config"].get("phase", "query")
            self.messages.append((direction, str(phase), sum(sizes(each)), flatten(each)))
            if direction == "down" and isinstance(config, ConfigRecord) and phase == UPLOAD:
                self.ready_sets.append(len(config["ready-set"]))  # type: ignore[arg-type]
        return replies

    @property
    def traffic(self) -> bytes:
        return b"\0".join(data for *_, data in self.messages)

    def sizes(self, direction: str, phase: str) -> list[int]:
        return [size for d, p, size, _ in self.messages if (d, p) == (direction, phase)]


def parts(message: Message) -> Iterator[bytes]:
    """All that a message carries, and its metadata."""
    yield repr(message.metadata).encode()
    if message.has_error():
        yield f"{message.error.code} {message.error.reason}".encode()
        return
    for key, record in message.content.items():
        yield key.encode()
        for name, value in record.items():
            yield name.encode()
            if isinstance(value, Array):
                yield f"{value.dtype} {value.shape} {value.stype}".encode()
                yield value.data
                continue
            for each in value if isinstance(value, list) else [value]:
                yield each if isinstance(each, bytes) else str(each).encode()


def flatten(message: Message) -> bytes:
    return b"\0".join(parts(message))


def sizes(message: Message) -> Iterator[int]:
    """Bytes of all values that are no arrays of the model or the update."""
    if not message.has_content():
        return
    for record in message.content.values():
        if not isinstance(record, ArrayRecord):
            for value in record.values():
                yield len(value) if isinstance(value, bytes | str) else 8


def encodings(secret: bytes) -> list[bytes]:
    """Ways in which bytes may be written, each of them of a part that is never hit by chance."""
    return [
        *(secret, secret[::-1], secret.hex().encode(), secret.hex().upper().encode()),
        base64.b64encode(secret)[:-4],
        base64.urlsafe_b64encode(secret)[:-4],
        *(sep.join(map(str, secret)).encode() for sep in (", ", ",", "\0")),
        str(int.from_bytes(secret, "big")).encode(),
        str(int.from_bytes(secret, "little")).encode(),
    ]


def noise_encodings(noise: np.ndarray, scale: int, step: float) -> list[bytes]:
    """The first 32 bytes of a pair's noise as any of the types that the code has it in."""
    found = []
    for sign in (1, -1):
        steps = sign * noise.astype(np.int64)[:32]
        for numbers in (steps, steps * scale):
            found += [numbers.astype(kind).tobytes()[:32] for kind in ("<i8", "<f8", "<f4")]
            found += [numbers.astype(np.uint32).tobytes()[:32]]
            found += [numbers.astype(">i8").tobytes()[:32]]
            found += [sep.join(map(str, numbers[:8])).encode() for sep in (", ", ",", "\0")]
        found += [steps.astype("<i2").tobytes()[:32], steps.astype(">i2").tobytes()[:32]]
        found += [(steps * scale * step).astype(kind).tobytes()[:32] for kind in ("<f8", "<f4")]
    return found


class Secrets:
    """What clients must keep for themselves, as they come by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.private: set[bytes] = set()
        self.shared: set[bytes] = set()
        self.edges: dict[bytes, tuple[int, float]] = {}
        derive, mask, sign = upload.derive_edges, upload.mask_update, participant.sign_card

        def derive_edges(exchange: bytes, *args: Any, **kw: Any) -> Any:
            self.private.add(exchange)
            peers = args[2]
            self.shared |= {key_agreement.agree(exchange, each.card.exchange) for each in peers}
            return derive(exchange, *args, **kw)

        def mask_update(update: Any, edges: Any, **kw: Any) -> Any:
            for key in (*edges.added, *edges.subtracted):
                self.edges[key] = kw["pair_scale"], kw["grid"].step
            return mask(update, edges, **kw)

        def sign_card(number: int, tag: bytes, identity: bytes, exchange: bytes) -> Any:
            self.private |= {identity, exchange}
            return sign(number, tag, identity, exchange)

        monkeypatch.setattr(upload, "derive_edges", derive_edges)
        monkeypatch.setattr(upload, "mask_update", mask_update)
        monkeypatch.setattr(participant, "sign_card", sign_card)

    def find(self, traffic: bytes) -> set[bytes]:
        """Return the secrets of which a part is in the traffic."""
        found = {
            secret
            for secret in self.private | self.shared | self.edges.keys()
            if any(each in traffic for each in encodings(secret))
        }
        for key, (scale, step) in self.edges.items():
            noise = gaussian_pair_noise(key, 32)
            if any(each in traffic for each in noise_encodings(noise, scale, step)):
                found.add(key)
        return found


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    return Secrets(monkeypatch)


def play(folder: Path, *words: str, clients: int = CLIENTS, state: Path | None = None) -> Tap:
    settings = compose_settings(
        [
            *("strategy=niss", "randomness=secret", f"num_rounds={ROUNDS}"),
            *(f"num_clients={clients}", *words),
        ]
    )
    config: dict[str, Any] = {"settings": settings.to_json(), "output-dir": str(folder)}
    nodes = {} if state is None else {"state-dir": str(state)}
    tap = Tap(InProcessGrid(client_app, clients, {**config, **nodes}))
    server_app(tap, Context(1, 0, {}, RecordDict(), config))
    return tap


@pytest.mark.parametrize("kept", ["context", "folder"])
def test_the_server_neither_sends_nor_gets_a_secret(
    secrets: Secrets, tmp_path: Path, kept: str
) -> None:
    state = tmp_path / "states" if kept == "folder" else None
    tap = play(tmp_path / "run", state=state)
    assert len(secrets.private) == 2 * CLIENTS
    assert len(secrets.shared) == CLIENTS * (CLIENTS - 1) // 2
    # Fresh for each round; the same key at both ends.
    assert len(secrets.edges) == ROUNDS * CLIENTS * (CLIENTS - 1) // 2
    assert len(tap.messages) >= 2 * CLIENTS * (1 + 2 * ROUNDS)
    assert secrets.find(tap.traffic) == set()
    assert read_outcome(tmp_path / "run").summary["num_rounds"] == ROUNDS
    # Nor do the files of the run hold one, which the server's owner may publish.
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file():
            assert secrets.find(file.read_bytes()) == set()


def test_a_twin_that_reads_the_clients_memory_is_caught(secrets: Secrets, tmp_path: Path) -> None:
    """The search finds keys where they are to be: in the file of the clients' states."""
    play(tmp_path / "run", state=tmp_path / "states")
    held = b"".join(file.read_bytes() for file in sorted((tmp_path / "states").iterdir()))
    assert {key for key in secrets.find(held) if key in secrets.private} == secrets.private


PLANTS = {
    "edge key": lambda key, scale: key,
    "its hex": lambda key, scale: key.hex(),
    "its base64": lambda key, scale: base64.b64encode(key).decode(),
    "its numbers": lambda key, scale: list(key),
    "noise": lambda key, scale: gaussian_pair_noise(key, 650).tobytes(),
    "noise in steps": lambda key, scale: (
        scale * gaussian_pair_noise(key, 650).astype(np.int64)
    ).tobytes(),
    "noise in words": lambda key, scale: (
        (-scale * gaussian_pair_noise(key, 650).astype(np.int64)).astype(np.uint32).tobytes()
    ),
    "noise as text": lambda key, scale: list(map(int, gaussian_pair_noise(key, 650))),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_twin_that_tells_a_secret_is_caught(
    secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build = upload.upload_reply

    def tell(*args: Any, **kw: Any) -> Message:
        reply = build(*args, **kw)
        key, (scale, _) = next(iter(secrets.edges.items()))
        reply.content["config"] = ConfigRecord({"debug": PLANTS[name](key, scale)})
        return reply

    monkeypatch.setattr(upload, "upload_reply", tell)
    # Which would not let it leave.
    monkeypatch.setattr("fl_app.client_app.keep_allowed", lambda reply, *_, **__: reply)
    tap = play(tmp_path, "num_rounds=1")
    assert secrets.find(tap.traffic) == {next(iter(secrets.edges))}


def test_twins_that_tell_private_keys_or_shared_secrets_are_caught(secrets: Secrets) -> None:
    secrets.private, secrets.shared = {bytes(range(32))}, {bytes(range(1, 33))}
    for secret in (bytes(range(32)), bytes(range(1, 33))):
        for written in (secret, secret.hex().encode(), struct.pack("<32B", *secret)):
            assert secrets.find(b"before" + written + b"after") == {secret}
    assert secrets.find(bytes(range(31)) + bytes(40)) == set()


def test_a_neighbour_costs_at_most_200_bytes_a_round(tmp_path: Path) -> None:
    """152 with the list of ready clients, by difference; and nothing of it grows with the model."""
    small, large = (play(tmp_path / f"{count}", "num_rounds=1", clients=count) for count in (4, 7))
    for tap, count in ((small, 4), (large, 7)):
        assert tap.ready_sets == [152 * (count - 1)] * count
    growth = max(large.sizes("down", UPLOAD)) - max(small.sizes("down", UPLOAD))
    # The settings and the parameters name the number of clients, in a digit or two.
    assert 152 * 3 <= growth <= 200 * 3
    for direction, phase in (("up", UPLOAD), ("up", READY), ("up", REGISTER)):
        assert max(large.sizes(direction, phase)) == max(small.sizes(direction, phase)), phase
    assert max(large.sizes("up", READY)) <= 40
    assert max(large.sizes("up", REGISTER)) <= 160


def test_clients_register_once(tmp_path: Path) -> None:
    tap = play(tmp_path)
    assert len(tap.sizes("down", REGISTER)) == len(tap.sizes("up", REGISTER)) == CLIENTS
    for phase in (READY, UPLOAD):
        assert len(tap.sizes("down", phase)) == len(tap.sizes("up", phase)) == ROUNDS * CLIENTS
    rows = read_outcome(tmp_path).rows
    assert [row["registration_bytes"] > 0 for row in rows[1:]] == [True] + [False] * (ROUNDS - 1)
    assert all(row["uplink_bytes"] == CLIENTS * 4 * PARAMETERS for row in rows[1:])
