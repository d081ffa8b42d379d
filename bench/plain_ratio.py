"""Median round of the in-process engine against a plain PyTorch loop on the same work; memory.

The work: scikit-learn's digits (8x8 for logreg, upsampled to 28x28 for cnn), client i has 32
records drawn with seed 1000 + i, batches of 16, one epoch of SGD with step size 0.1, the update
clipped to norm 1, Gaussian noise of standard deviation 0.1. The loop adds the noise once to the
sum and sends nothing; the engine runs the whole product, where every client adds its noise,
quantises to 4 bits a parameter and packs. Both run one thread, in turns, in one process; the first
round of each turn is left out. A round lasts from the choice of the clients to the new model.

Memory is the peak resident set of a fresh process that runs two rounds; start is the time from
that process's first line to its first round.

Writes bench/results/plain_ratio.json.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

START = time.perf_counter()
# Before NumPy and torch start their threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fl_app.data import Records  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "plain_ratio.json"
NUM_TRAIN, NUM_RECORDS, BATCH, RATE, CLIP, NOISE = 1500, 32, 16, 0.1, 1.0, 0.1
SIZES = ((1_000, 20), (10_000, 100))


class Digits:
    """The digits, with overlapping partitions that are drawn when they are asked for."""

    num_classes = 10

    def __init__(self, model: str, num_clients: int) -> None:
        bunch = load_digits()
        images = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
        if model == "cnn":
            images = functional.interpolate(images, (28, 28), mode="bilinear", align_corners=False)
        labels = np.asarray(bunch.target, dtype=np.int64)
        self._all = Records(images.numpy(), labels)
        self.test = self._all.take(np.arange(NUM_TRAIN, len(labels)))
        self.num_partitions = num_clients
        self.feature_shape = self._all.feature_shape

    def partition(self, client: int) -> Records:
        drawn = np.random.default_rng(1000 + client).integers(0, NUM_TRAIN, NUM_RECORDS)
        return self._all.take(drawn)

    def partition_sizes(self) -> np.ndarray:
        return np.full(self.num_partitions, NUM_RECORDS)


def build(model: str) -> nn.Module:
    torch.manual_seed(0)
    if model == "logreg":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def plain(model: str, num_clients: int, num_sampled: int, rounds: int) -> list[float]:
    """Return the seconds of each round of the loop."""
    dataset, net, rng = Digits(model, num_clients), build(model), np.random.default_rng(0)
    weights = list(net.parameters())
    to_vector, from_vector = (
        nn.utils.parameters_to_vector,
        nn.utils.vector_to_parameters,
    )
    current, times = to_vector(weights).detach().clone(), []
    for _ in range(rounds):
        begin = time.perf_counter()
        total = torch.zeros_like(current)
        for client in rng.choice(num_clients, num_sampled, replace=False):
            with torch.no_grad():
                # A copy: vector_to_parameters makes the parameters views of the vector.
                from_vector(current.clone(), weights)
            records = dataset.partition(int(client))
            features, labels = map(torch.from_numpy, (records.features, records.labels))
            optimizer = torch.optim.SGD(weights, lr=RATE)
            for start in range(0, NUM_RECORDS, BATCH):
                part = slice(start, start + BATCH)
                optimizer.zero_grad()
                functional.cross_entropy(net(features[part]), labels[part]).backward()
                optimizer.step()
            with torch.no_grad():
                update = to_vector(weights) - current
                total += update * torch.clamp(CLIP / (update.norm() + 1e-12), max=1.0)
        current = current + (total + NOISE * torch.randn(total.shape)) / num_sampled
        times.append(time.perf_counter() - begin)
    return times


@contextmanager
def _bench_work(model: str, num_clients: int) -> Iterator[None]:
    """Put the bench's model and data in the place of the built-in ones."""
    dataset = Digits(model, num_clients)

    def build_model(*_: Any) -> nn.Module:
        return build(model)

    def load_dataset(*_: Any) -> Digits:
        return dataset

    with contextlib.ExitStack() as stack:
        for module in ("local_model", "federated_run"):
            stack.enter_context(mock.patch(f"fl_app.{module}.build_model", build_model))
        for place in ("local_task.load_dataset", "server_app.load_server_data"):
            stack.enter_context(mock.patch(f"fl_app.{place}", load_dataset))
        yield


def product(
    model: str, num_clients: int, num_sampled: int, rounds: int, randomness: str = "seeded"
) -> tuple[list[float], float]:
    """Return the seconds of each round, and when the first one began."""
    from fl_app.client_app import app as client_app
    from fl_app.config import compose_settings
    from fl_app.engines.in_process import run_in_process
    from fl_app.local_model import _build_shared
    from fl_app.server_app import app as server_app
    from strategies.dp_fedpaq.server import DpFedPaq

    settings = compose_settings(
        [
            f"num_rounds={rounds}",
            f"num_clients={num_clients}",
            f"num_sampled_clients={num_sampled}",
            # Stands for the bench's own model; not convex, so that the update is clipped.
            "model=cnn",
            f"randomness={randomness}",
            "strategy.sensitivity=whole_update",
            f"strategy.clipping_norm={CLIP}",
            "strategy.target_epsilon=null",
            # A replaced record moves the clipped update by up to twice the norm.
            f"strategy.noise_multiplier={NOISE / (2 * CLIP)}",
            "strategy.feature_norm=null",
            f"strategy.local_steps={NUM_RECORDS // BATCH}",
            f"strategy.batch_size={BATCH}",
            f"strategy.learning_rate={RATE}",
            f"strategy.max_participations={rounds}",
            "strategy.num_levels=null",
            "strategy.target_bits=4",
        ]
    )
    run_round, times, begins = DpFedPaq.run_round, [], []

    def timed(self: DpFedPaq, *arguments: Any) -> Any:
        begins.append(time.perf_counter())
        outcome = run_round(self, *arguments)
        times.append(time.perf_counter() - begins[-1])
        assert outcome.num_replies == num_sampled
        return outcome

    _build_shared.cache_clear()
    with (
        _bench_work(model, num_clients),
        mock.patch.object(DpFedPaq, "run_round", timed),
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        run_config = {"settings": settings.to_json(), "output-dir": folder}
        run_in_process(server_app, client_app, num_clients, run_config)
    _build_shared.cache_clear()
    return times, begins[0]


def compare(model: str, size: tuple[int, int], turns: int, rounds: int) -> dict[str, Any]:
    """Time both in turns; return the medians, in ms, and their ratio."""
    loop: list[float] = []
    ours: list[float] = []
    for _ in range(turns):
        loop += plain(model, *size, rounds)[1:]
        ours += product(model, *size, rounds)[0][1:]
    plain_ms, ours_ms = (statistics.median(times) * 1e3 for times in (loop, ours))
    return {
        "model": model,
        "num_clients": size[0],
        "num_sampled_clients": size[1],
        "plain_ms": round(plain_ms, 2),
        "ours_ms": round(ours_ms, 2),
        "ratio": round(ours_ms / plain_ms, 3),
    }


def one_process(model: str, num_clients: int, num_sampled: int) -> None:
    """Print the start-up time and the peak memory of this process."""
    _, begin = product(model, num_clients, num_sampled, rounds=2)
    # Not getrusage: its maximum is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    print(json.dumps({"start_seconds": round(begin - START, 2), "peak_mib": round(peak, 1)}))


def fresh_process(model: str, num_clients: int, num_sampled: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", model, str(num_clients), str(num_sampled)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    size = {"num_clients": num_clients, "num_sampled_clients": num_sampled}
    return {"model": model, **size, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8, help="of each turn, the first left out")
    parser.add_argument("--models", nargs="+", default=["logreg", "cnn"])
    parser.add_argument("--alone", nargs=3, metavar=("MODEL", "CLIENTS", "SAMPLED"))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if arguments.alone:
        model, *size = arguments.alone
        one_process(model, *map(int, size))
        return
    import datetime

    from fl_app.run_store import list_versions

    print("| model | clients | a round | plain, ms | ours, ms | ratio |")
    print("|---|---|---|---|---|---|")
    rounds = []
    for model in arguments.models:
        for size in SIZES:
            row = compare(model, size, arguments.turns, arguments.rounds)
            print("|", " | ".join(map(str, row.values())), "|", flush=True)
            rounds.append(row)
    print("| model | clients | a round | start, s | peak, MiB |")
    print("|---|---|---|---|---|")
    memory = []
    for model in arguments.models:
        for size in ((100, 20), *SIZES):
            row = fresh_process(model, *size)
            print("|", " | ".join(map(str, row.values())), "|", flush=True)
            memory.append(row)
    results = {
        "format_version": 1,
        "command": "python bench/plain_ratio.py",
        "seeds": {"run": 0, "client i's records": "1000 + i"},
        "turns": arguments.turns,
        "rounds_of_a_turn": arguments.rounds,
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "rounds": rounds,
        "memory": memory,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
