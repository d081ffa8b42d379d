"""Three processes that show each other their cards only find the same noise for each pair.

They differ as machines do: the second has no AES instructions, the third no vector units beyond
NumPy's least and another implementation of `decimal`.
"""

import hashlib
import json
import os
import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np

from strategies.mechanisms.key_agreement import agree, edge_key, public_exchange, public_identity
from tests import pairwise_noise_reference as reference
from tests.conftest import REPOSITORY

TAG, SIZE = b"run 7", 20_001
CLIENT = """
import json, sys
if sys.argv[1] == "pure":
    sys.modules["_decimal"] = None  # the implementation in Python is taken instead
    import decimal
    assert "_pydecimal" in sys.modules
from strategies.mechanisms.key_agreement import (
    PublicCard, agree, edge_key, sign_card, verify_card
)
from strategies.mechanisms.pairwise_noise import gaussian_pair_noise, sum_pair_noise

own = json.loads(sys.stdin.readline())
tag, size = bytes.fromhex(own["tag"]), own["size"]
exchange, nonce = bytes.fromhex(own["exchange"]), bytes.fromhex(own["nonce"])
card = sign_card(own["number"], tag, bytes.fromhex(own["identity"]), exchange)
print(card.to_bytes().hex(), flush=True)

noise, added, subtracted = {}, [], []
for data, peer_nonce in json.loads(sys.stdin.readline()):
    peer = PublicCard.from_bytes(bytes.fromhex(data))
    verify_card(peer, tag)
    if peer == card:
        continue
    ends = (card.identity, nonce), (peer.identity, bytes.fromhex(peer_nonce))
    key = edge_key(agree(exchange, peer.exchange), run_tag=tag, server_round=3, attempt=1,
                   ends=ends, purpose="gaussian")
    noise[peer.number] = gaussian_pair_noise(key, size).astype("<i2").tobytes().hex()
    (added if card.identity < peer.identity else subtracted).append(key)
total = sum_pair_noise(added, subtracted, size).astype("<i8").tobytes().hex()
print(json.dumps({"noise": noise, "total": total}))
"""
# SHA-256 of each pair's noise as little-endian 16-bit words, from the reference.
GOLDEN = {
    (0, 1): "ffe6d9a263a99e2f2d7355d7439470a3f8030cfa8bfd626acc14e07322db7179",
    (0, 2): "ff44b7f673bdf8e0284012fc59c0409690c5e6629c3a749503fa722a290df797",
    (1, 2): "4b33086f9fb61654a3d508c5ebe3f8f4fdd2b702bf77a366a9c88d6efbeb5e0a",
}


def private_keys(number: int) -> dict[str, bytes]:
    def made(purpose: str) -> bytes:
        return hashlib.sha256(f"{purpose} {number}".encode()).digest()

    return {
        "identity": made("identity"),
        "exchange": made("exchange"),
        "nonce": made("nonce")[:16],
    }


def vector_units() -> str:
    """Name the units that NumPy found here and can do without."""
    settings: Any = np.show_config(mode="dicts")
    return " ".join(settings.get("SIMD Extensions", {}).get("found", []))


def start_client(number: int) -> "subprocess.Popen[str]":
    machine: dict[str, str] = [
        {},
        {"OPENSSL_ia32cap": "~0x200000200000000"},
        {"NPY_DISABLE_CPU_FEATURES": vector_units()},
    ][number]
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, "pure" if number == 2 else "native"],
        cwd=REPOSITORY,
        env=os.environ | machine,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def exchange_cards() -> list[dict[str, Any]]:
    """Give each client its own private keys, and then everybody's cards and nonces."""
    clients = [start_client(number) for number in range(3)]
    try:
        cards = []
        for number, client in enumerate(clients):
            own: dict[str, Any] = {
                name: value.hex() for name, value in private_keys(number).items()
            }
            own |= {"number": number, "tag": TAG.hex(), "size": SIZE}
            assert client.stdin is not None
            client.stdin.write(json.dumps(own) + "\n")
            client.stdin.flush()
        for number, client in enumerate(clients):
            assert client.stdout is not None
            card = client.stdout.readline().strip()
            assert card, client.communicate()[1]
            cards.append((card, private_keys(number)["nonce"].hex()))
        found = []
        for client in clients:
            output, errors = client.communicate(json.dumps(cards) + "\n", timeout=60)
            assert client.returncode == 0, errors
            found.append(json.loads(output))
        return found
    finally:
        for client in clients:
            client.kill()
            client.wait()


def test_processes_derive_bit_identical_noise_for_each_pair() -> None:
    found = exchange_cards()
    expected = np.zeros((3, SIZE), dtype=np.int64)
    for one, other in combinations(range(3), 2):
        first, second = private_keys(one), private_keys(other)
        identities = [public_identity(each["identity"]) for each in (first, second)]
        key = edge_key(
            agree(first["exchange"], public_exchange(second["exchange"])),
            run_tag=TAG,
            server_round=3,
            attempt=1,
            ends=((identities[0], first["nonce"]), (identities[1], second["nonce"])),
            purpose="gaussian",
        )
        noise = np.array(reference.gaussian_noise(key, SIZE), dtype="<i2")
        assert bytes.fromhex(found[one]["noise"][str(other)]) == noise.tobytes()
        assert bytes.fromhex(found[other]["noise"][str(one)]) == noise.tobytes()
        assert hashlib.sha256(noise.tobytes()).hexdigest() == GOLDEN[one, other]
        sign = 1 if identities[0] < identities[1] else -1
        expected[one] += sign * noise
        expected[other] -= sign * noise
    totals = [np.frombuffer(bytes.fromhex(each["total"]), dtype="<i8") for each in found]
    assert np.array_equal(np.stack(totals), expected)
    assert not np.any(sum(totals))
    assert np.any(totals[0])
