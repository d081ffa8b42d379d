"""A small search from the command line, and what it leaves."""

import json
from pathlib import Path
from typing import Any

from fl_app.device_state import FolderState

AGENTS, INITIAL, ROUNDS = 5, 4, 6
SMALL = (
    *("strategy=dp_fts_de", f"num_rounds={ROUNDS}", f"strategy.num_initial={INITIAL}"),
    *(f"objective.num_agents={AGENTS}", "strategy.num_random_features=20"),
    *("strategy.features=rff", "strategy.lengthscale=0.3", "strategy.release_rounds=[1,2,4]"),
)


def read(folder: Path) -> dict[str, Any]:
    """Return what a run left: rows and files, without times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {"metrics": [{**row, "seconds": None} for row in rows]}
    for name in ("best_point", "shared_function", "summary", "privacy"):
        file = folder / f"{name}.json"
        found[name] = json.loads(file.read_text()) if file.exists() else None
    if found["summary"]:
        found["summary"]["wall_seconds"] = None
    queries = folder / "queries.jsonl"
    lines = queries.read_text().splitlines() if queries.exists() else []
    found["queries"] = [json.loads(line) for line in lines]
    return found


def search(fl_app: Any, folder: str, *words: str, code: int = 0) -> dict[str, Any]:
    ended = fl_app("run", *SMALL, f"hydra.run.dir={folder}", *words)
    assert ended.code == code, ended.errors
    return read(Path(folder))


def observations(folder: str, agent: int) -> list[Any]:
    return FolderState(Path(folder, "checkpoint"), "simulated", agent, "OFF").read_observations()
