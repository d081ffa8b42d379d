"""A small search, and what it leaves behind."""

import json
from pathlib import Path
from typing import Any

from fl_app.device_state import FolderState, list_entries

AGENTS, ROUNDS, INITIAL = 4, 16, 3
# Everything that must survive: replies lost and late, agents that are in no sum, releases apart.
SEARCH = (
    *("strategy=dp_fts_de", f"objective.num_agents={AGENTS}", f"num_rounds={ROUNDS}", "seed=3"),
    *(f"strategy.num_initial={INITIAL}", "strategy.num_random_features=20"),
    "strategy.features=rff",
    *("strategy.sample_rate=0.7", "strategy.release_rounds=[1,3,4,8,15]"),
    *("faults.loss_rate=0.15", "faults.late_rate=0.1", "faults.seed=3"),
)


def read_search(folder: Path) -> dict[str, Any]:
    """Return all that a search left, without its times and its engine."""
    found: dict[str, Any] = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ("best_point", "shared_function", "privacy")
    }
    summary = json.loads((folder / "summary.json").read_text())
    found["summary"] = {**summary, "wall_seconds": None, "engine": None}
    found["queries"] = (folder / "queries.jsonl").read_text()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{**row, "seconds": None} for row in rows]
    state = folder / "checkpoint"
    found["ledger"] = list_entries(state)
    found["observations"] = [
        FolderState(state, "simulated", agent, "OFF").read_observations() for agent in range(AGENTS)
    ]
    assert [len(each) for each in found["observations"]] == [INITIAL + ROUNDS - 1] * AGENTS
    assert [row["round"] for row in found["metrics"]] == list(range(ROUNDS + 1))
    return found
