"""A run that was stopped or killed: whether it can go on from what is in its folder."""

import json
from dataclasses import dataclass
from pathlib import Path

from fl_app.asked_clients import read_asked
from fl_app.checkpoint import CHECKPOINT_FILE, Checkpoint, digest_settings, read_checkpoint
from fl_app.device_state import STATE_FILE, count_observations, has_entries, list_entries
from fl_app.errors import ConfigError, RunError
from fl_app.run_files import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    METRICS_FILE,
    QUERIES_FILE,
    SUMMARY_FILE,
)
from fl_app.run_name import NAME_FILE, read_name
from fl_app.settings import RunSettings


@dataclass(frozen=True)
class BegunRun:
    """A folder in which a run was begun, and the run's settings.

    Attributes
    ----------
    folder : Path
    settings : RunSettings
        As its config.yaml has them; the engine may be another.
    """

    folder: Path
    settings: RunSettings

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its end and written its results.

        Raises
        ------
        ConfigError
            If its summary.json is damaged.
        """
        file = self.folder / SUMMARY_FILE
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
            ended = not summary["interrupted"] or summary["num_rounds"] >= self.settings.rounds
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError("resume", str(file), f"a whole file ({error})") from None
        return bool(ended)

    def read_checkpoint(self) -> Checkpoint | None:
        """Return where the run stands; None if it was ended before its first round was.

        Raises
        ------
        ConfigError
            If a file that the run needs is damaged, missing, or of another run.
        """
        folder = self.folder / CHECKPOINT_FOLDER
        checkpoint = read_checkpoint(folder)
        read_asked(folder)  # refuses what is damaged
        name = read_name(folder)
        metrics = self.folder / METRICS_FILE
        rows = metrics.read_bytes() if metrics.exists() else b""
        if checkpoint is None:
            # Each round's checkpoint is written before the next round's row.
            if rows.count(b"\n") > 2:
                raise ConfigError(
                    "resume", str(self.folder), f"a run's folder with {folder / CHECKPOINT_FILE}"
                )
            return None
        if checkpoint.settings != digest_settings(self.settings):
            raise ConfigError(
                "resume", str(self.folder / CONFIG_FILE), "the settings that the run began with"
            )
        kept = rows[: checkpoint.metrics_bytes]
        if len(kept) < checkpoint.metrics_bytes or not kept.endswith(b"\n"):
            raise ConfigError("resume", str(metrics), "a file with all rounds of the checkpoint")
        _check_rows(metrics, kept, checkpoint)
        _check_queries(self.folder / QUERIES_FILE, checkpoint)
        devices = self.settings.engine.name == "deployment"
        if devices and name is None:
            raise ConfigError(
                "resume",
                str(self.folder),
                f"a run's folder with {folder / NAME_FILE}: devices know the run by that name, and "
                "would begin another",
            )
        if checkpoint.totals.get("updates") and devices and has_entries(folder):
            raise ConfigError(
                "engine", "deployment", "the engine that the run began with: its clients were here"
            )
        if checkpoint.totals.get("updates") and not devices and not has_entries(folder):
            raise ConfigError(
                "resume",
                str(self.folder),
                f"a run's folder with {folder / STATE_FILE}: without it, the clients would not "
                "know how often they have taken part",
            )
        if self.settings.search is not None and not devices:
            _check_observations(folder)
        return checkpoint


def _check_observations(folder: Path) -> None:
    """Raise ConfigError unless all simulated clients have what they have observed."""
    from strategies.dp_fts_de.client import count_observations as count_known

    file = folder / STATE_FILE
    try:
        found = count_observations(folder)
    except RunError as error:
        raise ConfigError("resume", str(file), f"a file that can be read ({error})") from None
    for each in list_entries(folder):
        if found.get((each.run, each.client), 0) < count_known(each.entry):
            rule = f"a file with all observations (of client {each.client} there are too few)"
            raise ConfigError("resume", str(file), rule)


def _check_rows(file: Path, kept: bytes, checkpoint: Checkpoint) -> None:
    """Raise ConfigError unless the rows are those of round 0 to the checkpoint's."""
    lines = kept.splitlines()
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
            fits = row["round"] == number
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits:
            raise ConfigError("resume", f"{file}, line {number + 1}", f"the row of round {number}")
    if len(lines) != checkpoint.server_round + 1:
        raise ConfigError("resume", str(file), f"the rows of round 0 to {checkpoint.server_round}")


def _check_queries(file: Path, checkpoint: Checkpoint) -> None:
    """Raise ConfigError unless the file has the rows of the checkpoint's rounds."""
    content = file.read_bytes() if file.exists() else b""
    kept = content[: checkpoint.queries_bytes]
    if len(kept) < checkpoint.queries_bytes or (kept and not kept.endswith(b"\n")):
        raise ConfigError("resume", str(file), "a file with all rows of the checkpoint's rounds")
    for number, line in enumerate(kept.splitlines(), 1):
        try:
            row = json.loads(line)
            counts = [row[key] for key in ("round", "agent", "failures", "outside")]
            fits = {"best_value", "best_point"} <= row.keys()
            fits = fits and all(type(count) is int and count >= 0 for count in counts)
            fits = fits and 1 <= row["round"] <= checkpoint.server_round
        except (ValueError, KeyError, TypeError, AttributeError):
            fits = False
        if not fits:
            raise ConfigError(
                "resume", f"{file}, line {number}", "a row of the checkpoint's rounds"
            )
