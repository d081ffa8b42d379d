"""Seconds of a step of DP-FTS-DE, by part, on landmine detection: 29 agents, 10 + 60 evaluations.

The algorithm's pure functions run as client and server call them, without messages; the objective
is evaluated for real. Parts are measured in processor time on one thread, so that other programs
disturb them little; the whole run in wall time, on two processes of half the agents each, and as
the sum over rounds of the busier process's processor time: what it takes where both have a core to
themselves.

`--root FOLDER_WITH_LANDMINE` measures and writes bench/results/search_step.json; `--only sound`
takes one of the settings; --table prints the tables.
"""

import argparse
import dataclasses
import datetime
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from strategies.dp_fts_de import algorithm
from strategies.dp_fts_de.algorithm import AgentStreams, Broadcast, Floats
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.mechanisms.gaussian_process import GaussianProcess
from strategies.mechanisms.rng import Randomness

RESULTS = Path(__file__).parent / "results" / "search_step.json"
NUM_AGENTS, NUM_INITIAL, ROUNDS = 29, 10, 61
SIZES = (10, 40, 65)
PARTS = ("fit", "draw", "maximise", "vector", "other", "server", "objective")
# Area under the curve by Platt scaling is the published objective; by decision values it is
# computed in an eighth of the time.
SCORES = {"platt": "published", "decision": "default"}
SETTINGS = {
    "paper": DpFtsDeParameters(
        num_agents=NUM_AGENTS,
        dimension=2,
        mode="paper",
        features="rff",
        num_random_features=100,
        lengthscale=0.01,
        regularizer=1e-6,
        standardize=False,
        num_subregions=4,
        initial="own_box",
        sample_rate=0.35,
        clipping_norm=22.0,
        noise_multiplier=1.0,
        upload="all",
        upload_kind="sample",
        use_broadcast="every_round",
        prob_own="one_minus_inverse",
        prior_mean=False,
        fit_every=5,
    ),
    "sound": DpFtsDeParameters(
        num_agents=NUM_AGENTS,
        dimension=2,
        num_random_features=19,
        noise_multiplier=1.994,
        release_rounds=(1,),
    ),
}
SETTINGS["sound, every 5"] = dataclasses.replace(SETTINGS["sound"], fit_every=5)
Seconds = dict[str, float]


class Stopwatch:
    """Adds up the processor time of parts that do not contain one another."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.measure(part):
                return function(*arguments, **named)

        return timed

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - begin

    def take(self) -> Seconds:
        seconds, self.seconds = self.seconds, {}
        return seconds


class Agents:
    """Some of the agents, with their observations, in a process of their own."""

    def __init__(self, settings: str, root: str, scores: str) -> None:
        from fl_app.objectives.landmine import Landmine
        from fl_app.objectives.settings import LandmineSettings

        self.parameters = SETTINGS[settings]
        chosen = LandmineSettings(name="landmine", root=root, scores=scores)  # type: ignore[arg-type]
        self.objective = Landmine(chosen, 0)
        self.randomness = Randomness("seeded", 0)
        self.history: dict[int, list[tuple[Floats, float]]] = {}

    def step(
        self, agent: int, server_round: int, broadcast: Broadcast | None
    ) -> tuple[Floats, Seconds]:
        """Run a step of an agent; return its vector and the seconds of each part."""
        watch = Stopwatch()
        rows = self.history.setdefault(agent, [])
        streams = AgentStreams(self.randomness, server_round, agent)
        with ExitStack() as stack:
            for place, name, part in (
                (algorithm, "fit_own_process", "fit"),
                (GaussianProcess, "draw_function", "draw"),
                (algorithm, "maximize", "maximise"),
                (algorithm, "maximize_broadcast", "maximise"),
            ):
                timed = watch.wrap(part, getattr(place, name))
                stack.enter_context(mock.patch.object(place, name, timed))
            if server_round == 1:
                chosen = algorithm.draw_initial_points(
                    self.parameters, agent, streams.open("initial")
                )
            else:
                with watch.measure("whole"):
                    points, values = self.observed(agent)
                    query, _ = algorithm.choose_query(
                        self.parameters, points, values, broadcast, streams
                    )
                chosen = query[None]
                parts = ("fit", "draw", "maximise")
                own = sum(watch.seconds.get(part, 0.0) for part in parts)
                watch.seconds["other"] = watch.seconds.pop("whole") - own
        for point in chosen:
            with watch.measure("objective"):
                decoded = self.objective.space.decode(point)
                rows.append((point, self.objective.evaluate(agent, decoded, len(rows))))
        vector = np.zeros(self.parameters.num_random_features)
        if self.parameters.releases_in(server_round):
            with watch.measure("vector"):
                drawn = algorithm.draw_vector(
                    self.parameters, *self.observed(agent), streams.open("vector")
                )
                vector, _ = algorithm.clip_vector(self.parameters, drawn)
        return vector, watch.take()

    def observed(self, agent: int) -> tuple[Floats, Floats]:
        """Return an agent's points (n, D) and values (n,)."""
        points, values = zip(*self.history[agent], strict=True)
        return np.array(points), np.array(values)


def run_search(settings: str, root: str, scores: str, processes: int) -> dict[str, Any]:
    """Run the whole search; agent n lives in process n mod `processes`."""
    parameters, randomness = SETTINGS[settings], Randomness("seeded", 0)
    broadcast: Broadcast | None = None
    rows: list[dict[str, float]] = []
    busy = 0.0
    watch = Stopwatch()
    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                ProcessPoolExecutor(1, initializer=_start, initargs=(settings, root, scores))
            )
            for _ in range(processes)
        ]
        # The processes have started and read the data before the clock does.
        for pool in pools:
            pool.submit(_observe, -1).result()
        begin = time.perf_counter()
        for server_round in range(1, ROUNDS + 1):
            jobs = [
                pools[agent % processes].submit(_step, agent, server_round, broadcast)
                for agent in range(NUM_AGENTS)
            ]
            replies = [job.result() for job in jobs]
            rows += [{"n": NUM_INITIAL + server_round - 2, **seconds} for _, seconds in replies]
            spent = [sum(seconds.values()) for _, seconds in replies]
            busy += max(sum(spent[number::processes]) for number in range(processes))
            if not parameters.releases_in(server_round) or server_round == ROUNDS:
                continue
            with watch.measure("server"):
                sampled = algorithm.sample_agents(
                    parameters, randomness.stream("fts-cohort", server_round)
                )
                released = algorithm.release_sums(
                    parameters,
                    server_round,
                    sampled,
                    [replies[agent][0] for agent in sampled],
                    randomness.stream("fts-server-noise", server_round),
                )
            broadcast = Broadcast(released, server_round)
        wall = time.perf_counter() - begin
        found = [pools[n % processes].submit(_observe, n).result() for n in range(NUM_AGENTS)]
    return {
        "wall": wall,
        "busy": busy + watch.seconds.get("server", 0.0),
        "rows": rows,
        "server": watch.seconds.get("server", 0.0),
        "observed": found,
        "digest": _digest(found),
    }


_agents: Agents | None = None


def _start(settings: str, root: str, scores: str) -> None:
    global _agents
    _agents = Agents(settings, root, scores)


def _step(agent: int, server_round: int, broadcast: Broadcast | None) -> tuple[Floats, Seconds]:
    assert _agents is not None
    return _agents.step(agent, server_round, broadcast)


def _observe(agent: int) -> tuple[Floats, Floats]:
    assert _agents is not None
    return _agents.observed(agent) if agent >= 0 else (np.zeros((0, 2)), np.zeros(0))


def _digest(found: list[tuple[Floats, Floats]]) -> str:
    whole = hashlib.sha256()
    for points, values in found:
        whole.update(points.tobytes() + values.tobytes())
    return whole.hexdigest()[:16]


def describe(settings: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return medians by part and n, totals over the run, and ratios to the objective."""
    rows = found["rows"]
    by_size = {}
    for n in SIZES:
        near = [row for row in rows if n <= row["n"] < n + 5]
        by_size[n] = {
            part: round(1e3 * statistics.mean(row.get(part, 0.0) for row in near), 3)
            for part in PARTS
            if part != "server"
        }
    totals = {part: sum(row.get(part, 0.0) for row in rows) for part in PARTS}
    totals["server"] = found["server"]
    outside = sum(seconds for part, seconds in totals.items() if part != "objective")
    return {
        "milliseconds_a_step": by_size,
        "seconds_a_run": {part: round(seconds, 3) for part, seconds in totals.items()},
        "outside_over_objective": round(outside / totals["objective"], 3),
        "seconds_on_two_free_cores": round(found["busy"], 2),
        "wall_seconds_on_two_processes": round(found["wall"], 2),
        "digest": found["digest"],
    }


def measure(root: str, only: str | None, compare: bool) -> dict[str, Any]:
    """Run everything."""
    from fl_app.run_store import list_versions

    results: dict[str, Any] = {
        "format_version": 1,
        "command": "python bench/search_step.py --root=FOLDER_WITH_LANDMINE",
        "seeds": [0],
        "versions": list_versions(),
        "date": datetime.date.today().isoformat(),
        "runs": {},
    }
    for scores in SCORES:
        for settings in SETTINGS:
            name = f"{settings}, {scores}"
            if only is not None and not name.startswith(only):
                continue
            found = run_search(settings, root, scores, 2)
            results["runs"][name] = describe(settings, found)
            if compare and scores == "decision":
                alone = run_search(settings, root, scores, 1)
                if alone["digest"] != found["digest"]:
                    raise RuntimeError("results depend on the number of processes")
            print(name, json.dumps(results["runs"][name]), flush=True)
    return results


def print_table(results: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"| milliseconds of a step | n | {' | '.join(PARTS[:-2])} | objective |")
    print("|---|---|" + "---|" * (len(PARTS) - 1))
    for name, run in results["runs"].items():
        for n, parts in run["milliseconds_a_step"].items():
            cells = " | ".join(f"{each:.2f}" for each in parts.values())
            print(f"| {name} | {n} | {cells} |")
    print()
    for name, run in results["runs"].items():
        print(
            f"{name}: outside the objective over the objective "
            f"{run['outside_over_objective']:.2f}; the whole on two free cores "
            f"{run['seconds_on_two_free_cores']:.1f} s."
        )


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder with LandmineData.mat: measure")
    parser.add_argument("--only", help="the runs whose names begin so; nothing is written")
    parser.add_argument("--table", action="store_true", help="print the tables")
    arguments = parser.parse_args()
    if arguments.root:
        results = measure(arguments.root, arguments.only, arguments.only is None)
        if arguments.only is None:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        else:
            print_table(results)
    if arguments.table:
        print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
