"""A run's state after a round, in one file that is replaced as a whole.

The clients' states are apart, in the file beside it (`fl_app.device_state`).
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fl_app.engines.stored_reply import Blobs
from fl_app.errors import ConfigError
from fl_app.model_files import Arrays, load_model_file, save_model
from fl_app.settings import EngineSettings, RunSettings

CHECKPOINT_FILE = "server.safetensors"
FORMAT_VERSION = 2
_METADATA = "checkpoint"
_DIGEST = "sha256"
_MODEL, _BLOB = "model.", "blob."


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after a round.

    Attributes
    ----------
    server_round : int
        The last round that is complete, from 1.
    arrays : dict of str to ndarray
        The global model.
    totals : dict of str to int
        The run's sums over its rounds.
    row : dict
        The last row of metrics.jsonl.
    metrics_bytes : int
        Length of metrics.jsonl up to and with that row.
    queries_bytes : int
        Length of queries.jsonl up to and with the round's rows; 0 without any.
    strategy : dict
        What the strategy's `export_state` returned.
    faults : dict or None
        What the faulty grid's `export_state` returned; None without faults.
    blobs : Blobs
        The bytes that belong to `faults`.
    settings : str
        `digest_settings` of the run.
    seconds : float
        Wall time of the run so far.
    """

    server_round: int
    arrays: Arrays
    totals: dict[str, int]
    row: dict[str, Any]
    metrics_bytes: int
    queries_bytes: int
    strategy: dict[str, Any]
    faults: dict[str, Any] | None
    settings: str
    seconds: float
    blobs: Blobs = field(default_factory=Blobs)


def digest_settings(settings: RunSettings) -> str:
    """Return the SHA-256 of all that defines a run's results; the engine does not."""
    return hashlib.sha256(strip_engine(settings).to_json().encode()).hexdigest()


def strip_engine(settings: RunSettings) -> RunSettings:
    """Return the settings with the default engine: what is the same wherever a run executes."""
    return dataclasses.replace(settings, engine=EngineSettings())


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the folder's checkpoint once the new one is complete on disk; OSError if it fails."""
    values = {
        each.name: getattr(checkpoint, each.name)
        for each in dataclasses.fields(checkpoint)
        if each.name not in ("arrays", "blobs")
    }
    content = {f"{_MODEL}{name}": array for name, array in checkpoint.arrays.items()}
    for name, data in checkpoint.blobs.items():
        content[f"{_BLOB}{name}"] = np.frombuffer(data, dtype=np.uint8)
    text = json.dumps({"format_version": FORMAT_VERSION, **values})
    digest = _digest(text, content)
    save_model(folder / CHECKPOINT_FILE, content, {_METADATA: text, _DIGEST: digest})


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the folder's checkpoint; None if there is none.

    Raises
    ------
    ConfigError
        If the file is damaged, of another kind, or of an unknown format version.
    """
    file = folder / CHECKPOINT_FILE
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
        values = json.loads(metadata[_METADATA])
        version = values.pop("format_version")
        if isinstance(version, bool) or version != FORMAT_VERSION:
            raise ConfigError("format_version", version, f"{FORMAT_VERSION} ({file})")
        content = load_model_file(file)
        checkpoint = Checkpoint(
            **values,
            arrays=_take(content, _MODEL),
            blobs=Blobs({name: each.tobytes() for name, each in _take(content, _BLOB).items()}),
        )
        _check(checkpoint)
        if metadata.get(_DIGEST) != _digest(metadata[_METADATA], content):
            raise ValueError("its content is not what its digest says")
        return checkpoint
    except ConfigError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError("resume", str(file), f"a whole checkpoint ({reason})") from None


def _digest(text: str, content: Arrays) -> str:
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(content.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _take(content: Arrays, prefix: str) -> Arrays:
    return {
        name.removeprefix(prefix): each for name, each in content.items() if name.startswith(prefix)
    }


def _check(checkpoint: Checkpoint) -> None:
    """Raise ValueError unless the values are of their types; the strategy checks its own."""
    lengths = (checkpoint.metrics_bytes, checkpoint.queries_bytes)
    counts = [checkpoint.server_round, *lengths, *checkpoint.totals.values()]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("a count that is none")
    if not checkpoint.arrays or not isinstance(checkpoint.strategy, dict):
        raise ValueError("no model or no strategy")
    if not isinstance(checkpoint.row, dict) or not isinstance(checkpoint.seconds, float):
        raise ValueError("no row or no time")
