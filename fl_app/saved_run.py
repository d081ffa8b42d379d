"""A finished run's model: load it from the run's folder and evaluate it."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from fl_app.config import data_settings
from fl_app.data import DataSettings, FederatedDataset, PartitionSettings, load_dataset
from fl_app.errors import ConfigError
from fl_app.evaluation import Evaluation, evaluate
from fl_app.local_training import project_records
from fl_app.model_arrays import load_arrays
from fl_app.model_files import Arrays, load_model_file
from fl_app.models import build_model, input_placement
from fl_app.named_code import list_named_code, read_allowed_code, require_named_again
from fl_app.run_config import read_run_settings
from fl_app.run_files import BEST_POINT_FILE, CONFIG_FILE, MODEL_FILE
from fl_app.settings import RunSettings


def read_settings(folder: Path) -> RunSettings:
    """Return the settings of a run that trains a model; ConfigError if the folder holds none."""
    text = _read_config(folder)
    try:
        settings = read_run_settings(text)
    except ConfigError as error:
        raise ConfigError.from_text(f"{folder / CONFIG_FILE}: {error}") from error
    if settings.search is not None:
        raise ConfigError(
            "RUN", str(folder), f"a run that trained a model (this searched: {BEST_POINT_FILE})"
        )
    return settings


class TrainedModel(torch.nn.Module):
    """A run's model behind the preparation that its data went through.

    Parameters
    ----------
    model : torch.nn.Module
        From prepared features to logits.
    settings : RunSettings
        Of the run: the data's scale and offset, and the norm that records are projected on.
    """

    def __init__(self, model: torch.nn.Module, settings: RunSettings) -> None:
        super().__init__()
        self.model = model
        self._data = settings.data
        self._feature_norm = settings.training.feature_norm

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits (n, num_classes) of raw features (n, *feature_shape), as they are stored.

        For images of the digits and of MNIST these are pixels of 0 to 16 and of 0 to 255.
        """
        scaled = np.asarray(features, dtype=np.float32) / np.float32(self._data.scale)
        scaled -= np.float32(self._data.offset)
        projected = torch.from_numpy(project_records(scaled, self._feature_norm))
        device, dtype = input_placement(self.model)
        logits: torch.Tensor = self.model(projected.to(device, dtype))
        return logits


def load_model(folder: str | Path, allow: Iterable[str] = ()) -> TrainedModel:
    """Return the trained model of a run, in evaluation mode, with its preparation of features.

    Parameters
    ----------
    folder : str or Path
        The run's folder.
    allow : iterable of str
        Import paths ``package.module:name`` of functions that its configuration may name
        (`model.path`, `data.path`): no other code of a folder's choice is run.

    Raises
    ------
    ConfigError
        If it is not the folder of a finished run, or it names code that is not allowed.
    DataError
        If its data, which say how large the model is, are missing.
    """
    path = Path(folder)
    settings = read_settings(path)
    arrays = _read_arrays(path)
    require_named_again(list_named_code(settings), allow, 'allow=("{path}",)')
    dataset = _load_undivided(settings.data)
    try:
        model = _build(settings, dataset)
        load_arrays(model, arrays)
    except ValueError as error:
        raise ConfigError("RUN", str(folder), f"a model as config.yaml says ({error})") from error
    return TrainedModel(model, settings).eval()


def evaluate_run(folder: Path, overrides: list[str]) -> Evaluation:
    """Evaluate a run's model on the test set of its data, or of other data.

    Parameters
    ----------
    folder : Path
        The run's folder.
    overrides : list of str
        ``data=NAME`` and ``data.key=value``; ``model.path=...``, and ``data.path=...``, with the
        function that the run's configuration names: otherwise it is not called.

    Raises
    ------
    ConfigError
        If it is not the folder of a finished run, an override is not allowed, it names code that
        no override names, or the model cannot take the data.
    DataError
        If data is missing.
    """
    settings = read_settings(folder)
    arrays = _read_arrays(folder)
    kept = [word for word in overrides if not word.startswith("model.path=")]
    data = data_settings(_read_config(folder), kept)
    named = [("data.path", data.path), ("model.path", settings.model.path)]
    require_named_again(named, read_allowed_code(overrides), "{key}={path}")
    dataset = _load_undivided(data)
    try:
        model = _build(settings, dataset)
        return evaluate(model, arrays, dataset.test, settings.training.feature_norm)
    except ValueError as error:
        raise ConfigError(
            "data", data.name, f"data that the run's model takes ({error})"
        ) from error


def _read_config(folder: Path) -> str:
    try:
        return (folder / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("RUN", str(folder), _explain(CONFIG_FILE, error)) from error


def _read_arrays(folder: Path) -> Arrays:
    try:
        return load_model_file(folder / MODEL_FILE)
    except (OSError, ValueError) as error:
        raise ConfigError("RUN", str(folder), _explain(MODEL_FILE, error)) from error


def _explain(name: str, error: Exception) -> str:
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    reason = f" ({error})" if not missing else ""
    return f"the folder of a finished run, with {name}{reason}"


def _build(settings: RunSettings, dataset: FederatedDataset) -> torch.nn.Module:
    return build_model(settings.model, dataset.feature_shape, dataset.num_classes, settings.seed)


def _load_undivided(settings: DataSettings) -> FederatedDataset:
    """Load the data for their test set; how the rest is divided does not matter."""
    return load_dataset(dataclasses.replace(settings, partition=PartitionSettings()), 1, 0)
