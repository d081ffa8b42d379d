"""A finished run's model: load it from the run's folder and evaluate it."""

import dataclasses
from pathlib import Path

import torch

from fl_app.config import data_settings, read_run_settings
from fl_app.data import DataSettings, FederatedDataset, PartitionSettings, load_dataset
from fl_app.errors import ConfigError
from fl_app.evaluation import Evaluation, evaluate
from fl_app.model_arrays import load_arrays, load_model_file
from fl_app.models import build_model
from fl_app.run_store import CONFIG_FILE, MODEL_FILE
from fl_app.settings import RunSettings


def read_settings(folder: Path) -> RunSettings:
    """Return a run's settings; ConfigError if the folder holds none."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ConfigError("RUN", str(folder), f"the folder of a finished run, with {CONFIG_FILE}")
    return read_run_settings(file.read_text(encoding="utf-8"))


def load_model(folder: str | Path) -> torch.nn.Module:
    """Return the trained model of a run, in evaluation mode.

    Parameters
    ----------
    folder : str or Path
        The run's folder.

    Raises
    ------
    ConfigError
        If it is not the folder of a finished run.
    """
    path = Path(folder)
    settings = read_settings(path)
    if not (path / MODEL_FILE).is_file():
        raise ConfigError("RUN", str(folder), f"the folder of a finished run, with {MODEL_FILE}")
    dataset = _load_undivided(settings.data)
    model = build_model(settings.model, dataset.feature_shape, dataset.num_classes, settings.seed)
    load_arrays(model, load_model_file(path / MODEL_FILE))
    return model.eval()


def evaluate_run(folder: Path, overrides: list[str]) -> Evaluation:
    """Evaluate a run's model on the test set of its data, or of other data.

    Parameters
    ----------
    folder : Path
        The run's folder.
    overrides : list of str
        ``data=NAME`` and ``data.key=value``.
    """
    settings = read_settings(folder)
    text = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    dataset = _load_undivided(data_settings(text, overrides))
    model = build_model(settings.model, dataset.feature_shape, dataset.num_classes, settings.seed)
    arrays = load_model_file(folder / MODEL_FILE)
    return evaluate(model, arrays, dataset.test, settings.strategy.feature_norm)


def _load_undivided(settings: DataSettings) -> FederatedDataset:
    """Load the data for their test set; how the rest is divided does not matter."""
    return load_dataset(dataclasses.replace(settings, partition=PartitionSettings()), 1, 0)
