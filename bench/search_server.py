"""DP-FTS-DE's server alone: its time a round as agents grow in number, and its memory over a run.

Agents answer at once with the same vector of M = 100 numbers, P = 4, every round releases. The time
of a round is the server's own: requests built, replies read, sums, noise, broadcast; messages are
carried in between. Memory is what Python's allocator holds at most while a round lasts, everything
counted: server, messages and the agents' stand-ins.

Writes bench/results/search_server.json; --table prints it.
"""

import argparse
import datetime
import json
import logging
import os
import statistics
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.engines.in_process import InProcessGrid
from strategies import DpFtsDe
from strategies.dp_fts_de.messages import broadcast_record, pack_vector, step_reply
from strategies.rounds import RoundResult

RESULTS = Path(__file__).parent / "results" / "search_server.json"
FEWER, MORE = 100, 1000
ROUNDS, EARLY, LATE = 15, 20, 200
VECTOR = pack_vector(np.random.default_rng(0).normal(size=100))


def make_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return step_reply(message, VECTOR, None)

    return app


class CarryingGrid(InProcessGrid):
    """Counts the seconds in which messages are carried and agents answer."""

    seconds = 0.0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        requests = list(messages)
        begin = time.perf_counter()
        replies = super().send_and_receive(requests, timeout=timeout)
        self.seconds = time.perf_counter() - begin
        return replies


def run_rounds(num_agents: int, num_rounds: int) -> tuple[list[float], list[int]]:
    """Return the server's seconds and the peak of memory in each round that releases."""
    grid = CarryingGrid(make_app(), num_agents, {})
    seconds: list[float] = []
    peaks: list[int] = []

    def note(row: RoundResult, _: Any) -> None:
        seconds.append(row.seconds - grid.seconds)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()

    strategy = DpFtsDe(
        dimension=2,
        noise_multiplier=1.0,
        num_subregions=4,
        release_rounds=(),
        randomness="secret",
        on_round=note,
    )
    # The last round releases nothing.
    strategy.start(grid, broadcast_record(None), num_rounds=num_rounds + 1)
    return seconds[:-1], peaks[:-1]


def measure() -> dict[str, Any]:
    from fl_app.run_store import list_versions

    medians = {}
    for size in (FEWER, MORE):
        run_rounds(size, 2)
        medians[size] = statistics.median(run_rounds(size, ROUNDS)[0])
    tracemalloc.start()
    _, peaks = run_rounds(MORE, LATE)
    tracemalloc.stop()
    return {
        "format_version": 1,
        "command": "python bench/search_server.py",
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "milliseconds": {str(size): round(1e3 * value, 2) for size, value in medians.items()},
        "time_over_linear": round(medians[MORE] / medians[FEWER] * FEWER / MORE, 3),
        "peak_mib": {str(t): round(peaks[t - 1] / 2**20, 2) for t in (EARLY, LATE // 2, LATE)},
        "memory_growth": round(peaks[LATE - 1] / peaks[EARLY - 1], 3),
    }


def print_table(results: dict[str, Any]) -> None:
    print("| server of a search, M = 100, P = 4 | ratio |\n|---|---|")
    print(f"| time of a round, {MORE} agents over {MORE // FEWER} times {FEWER} agents'", end=" | ")
    print(f"{results['time_over_linear']:.2f} |")
    print(f"| peak memory with {MORE} agents, round {LATE} over round {EARLY}", end=" | ")
    print(f"{results['memory_growth']:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    if not parser.parse_args().table:
        logging.disable(logging.CRITICAL)
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
