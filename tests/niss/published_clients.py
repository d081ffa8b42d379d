"""Clients of one round of mode `paper` without a transport: keys, ready sets, uploads."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.key_agreement import sign_card
from strategies.mechanisms.rng import SeededStream
from strategies.niss.parameters import NissParameters
from strategies.niss.peers import ReadyPeer
from strategies.niss.published_round import (
    PublishedNoise,
    PublishedRound,
    accept_shares,
    plan_published_round,
)

RUN_TAG = b"a run"


def build_parameters(num_ready: int = 6, participations: int = 20, **fields: Any) -> NissParameters:
    """Return parameters of mode `paper`: whole updates of norm 1, epsilon 10 over 20 rounds."""
    names = {"clipping_norm", "target_epsilon", "target_delta", "noise_multiplier"}
    update = DpFedPaqParameters(
        participations,
        **{
            **{"target_epsilon": 10.0, "clipping_norm": 1.0, "local_steps": 1, "quantizer": "none"},
            **{key: fields.pop(key) for key in names & fields.keys()},
        },
    )
    plan = {"min_ready": 2, "max_ready": num_ready, "num_clients": 100}
    return NissParameters(update=update, mode="paper", **{**plan, **fields})


@dataclass(frozen=True)
class Clients:
    """The ready clients of a round and what the tracker tells them."""

    parameters: NissParameters
    peers: list[ReadyPeer]
    keys: list[bytes]
    plan: PublishedRound
    seed: str

    def ready_set(self, client: int) -> list[ReadyPeer]:
        return [peer for number, peer in enumerate(self.peers) if number != client]

    def told(self, client: int) -> dict[str, Any]:
        """Return what a client is told, by the names that `accept_shares` gives it."""
        others = [peer for peer in range(len(self.peers)) if peer != client]
        fields = self.plan.describe(client, others)
        return {
            "grid": self.plan.grid,
            "weight": fields["weight"],
            "own_multiple": fields["pair_scale"],
            "shares": fields["shares"],
        }

    def accept(self, client: int, **changes: Any) -> PublishedNoise:
        ready = changes.pop("ready", self.ready_set(client))
        return accept_shares(
            changes.pop("parameters", self.parameters),
            ready,
            changes.pop("accepted", ready),
            number=client,
            identity=self.peers[client].card.identity,
            exchange_private=self.keys[client],
            nonce=self.peers[client].nonce,
            run_tag=RUN_TAG,
            server_round=1,
            attempt=1,
            **{**self.told(client), **changes},
        )

    def upload(self, client: int, update: np.ndarray, **changes: Any) -> np.ndarray:
        noise = self.accept(client, **changes)
        return noise.add_to(update, SeededStream(f"{self.seed}/own/{client}".encode()))


def make_clients(
    parameters: NissParameters,
    num_ready: int = 6,
    records: dict[int, int] | None = None,
    seed: str = "0",
) -> Clients:
    peers, keys = [], []
    for client in range(num_ready):
        private = [
            hashlib.sha256(f"{seed}/{kind}/{client}".encode()).digest()
            for kind in ("identity", "exchange", "nonce")
        ]
        peers.append(ReadyPeer(sign_card(client, RUN_TAG, *private[:2]), private[2][:16]))
        keys.append(private[1])
    sizes = dict.fromkeys(range(num_ready), 0) if records is None else records
    plan = plan_published_round(
        parameters,
        1,
        [list(range(num_ready))],
        sizes,
        {client: client for client in sizes},
        SeededStream(f"{seed}/tracker".encode()),
    )
    return Clients(parameters, peers, keys, plan, seed)
