"""What a run needs before it starts: data, models and objectives that are there and fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_app.errors import ConfigError

if TYPE_CHECKING:
    from fl_app.data import FederatedDataset
    from fl_app.settings import RunSettings


def check_data(settings: RunSettings) -> None:
    """Load the data and build the model once: what is missing is said before anything starts.

    Of a search, load the objective and plan the noise.

    Raises
    ------
    ConfigError
        If the number of clients is open, the model cannot be built for these data or trained as
        asked, or the uplink budget does not suffice.
    DataError
        If data is missing or cannot be divided as asked.
    """
    settings = fill_num_clients(settings)
    if settings.search is not None:
        from fl_app.search_task import planned_parameters, read_search_space

        with _named_agents(settings):
            read_search_space(settings)
        planned_parameters(settings)
        return
    from fl_app.local_model import check_model
    from fl_app.model_arrays import to_arrays
    from fl_app.models import build_model
    from fl_app.registry import check_budget

    data = load_server_data(settings)
    try:
        model = build_model(settings.model, data.feature_shape, data.num_classes, settings.seed)
    except ValueError as error:
        raise ConfigError.from_text(str(error)) from error
    check_model(settings, data)
    floats = (array for array in to_arrays(model).values() if array.dtype.kind == "f")
    check_budget(settings, sum(array.size for array in floats))


@contextmanager
def _named_agents(settings: RunSettings) -> Iterator[None]:
    """Name what was configured where the data do not suffice for the agents of a search."""
    from fl_app.data import TooManyClientsError

    objective, kind = settings.objective, settings.data.partition.kind
    assert objective is not None
    devices = settings.engine.name == "deployment"
    if objective.name == "local_training" and kind != "natural_id" and not devices:
        raise ConfigError(
            "data.partition.kind",
            kind,
            "natural_id with objective=local_training, whose agents are the data's own clients: "
            "data=har_geotec, heart_disease or mnist_writers with data.root=FOLDER; or data=user "
            "data.partition.kind=natural_id with a data.path=package.module:name of yours that "
            "says whose each record is (train_groups)",
        )
    try:
        yield
    except TooManyClientsError as error:
        agents = getattr(objective, "num_agents", None)
        if agents is None:
            raise
        parts = error.num_clients // agents
        most = error.num_records // (error.each * parts)
        why = (
            f"(each takes {parts} parts of the {error.num_records} training records: one for each "
            "of its own clients, and one to score on)"
        )
        if most:
            raise ConfigError("objective.num_agents", agents, f"1 to {most} {why}") from error
        rule = f"a smaller num_clients, or more data {why}"
        raise ConfigError("objective.run", getattr(objective, "run", None), rule) from error


def load_server_data(settings: RunSettings) -> FederatedDataset:
    """Load the data as a run's server needs them.

    Of devices it knows no records: of its own copy it uses the public test set, the shape of the
    features and the number of classes, and how the rest would be divided does not matter.

    Raises
    ------
    DataError
        If data is missing or cannot be divided as asked.
    """
    from fl_app.data import PartitionSettings, load_dataset

    if settings.engine.name == "deployment":
        undivided = dataclasses.replace(settings.data, partition=PartitionSettings())
        return load_dataset(undivided, 1, settings.seed)
    return load_dataset(settings.data, settings.num_clients, settings.seed)


def fill_num_clients(settings: RunSettings) -> RunSettings:
    """Return the settings with a number of clients: where it is open, all that the data have.

    Raises
    ------
    ConfigError
        If it is open and the data have no clients of their own.
    """
    from fl_app.data import natural_num_clients

    if settings.num_clients is not None:
        return settings
    devices = settings.engine.name == "deployment"
    if settings.search is not None and devices:
        count = getattr(settings.objective, "num_agents", None)
        if count is None:
            raise ConfigError("num_clients", None, "the number of devices")
        return dataclasses.replace(settings, num_clients=count)
    if settings.search is not None:
        from fl_app.search_task import load_run_objective

        with _named_agents(settings):
            count = load_run_objective(settings).num_agents
        return dataclasses.replace(settings, num_clients=count)
    if settings.data.partition.kind != "natural_id":
        raise ConfigError(
            "num_clients",
            None,
            "an integer >= 1 (null: with data.partition.kind=natural_id or plain flwr run)",
        )
    return dataclasses.replace(settings, num_clients=natural_num_clients(settings.data))


def with_absolute_paths(settings: RunSettings) -> RunSettings:
    """Return the settings with paths that hold in any working folder, in which a run may go on."""
    data = settings.data
    absolute: dict[str, Any] = {}
    for key in ("root", "writer_labels"):
        given = getattr(data, key)
        path = Path(given or "").expanduser()
        # With data.download, what is not there is the name of a set, not a path.
        if given is not None and (path.exists() or not data.download):
            absolute[key] = str(path.absolute())
    objective = settings.objective and settings.objective.with_absolute_paths()
    data = dataclasses.replace(data, **absolute)
    return dataclasses.replace(settings, data=data, objective=objective)
