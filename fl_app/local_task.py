"""What a client works on: its settings, its records, what it remembers.

Torch is imported by what trains, so that searches which train nothing start without it.
"""

from flwr.app import ArrayRecord, Message

from fl_app.data import FederatedDataset, Records, load_dataset, load_own_dataset
from fl_app.device_budget import NO_LIMITS, RunLimits
from fl_app.settings import RunSettings
from strategies.device_state import DeviceState
from strategies.dp_fedpaq.client import LocalWork, Trained
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust


class LocalTask:
    """The local side of one client.

    Parameters
    ----------
    settings : RunSettings
    partition_id : int
        Number of the client's partition.
    num_partitions : int
        Number of partitions in the run.
    state : DeviceState or None
        What the client remembers of the run; None: the method's choice.
    trust : DeviceTrust
        Who the device is to others, and whom it trusts.
    limits : RunLimits
        What the device's policy leaves for the run.
    own : RunSettings or None
        The settings with the device's own data in place of what they name; None: the same.
    owns_data : bool
        Whether all of those data are the client's own; otherwise a partition of them is.
    """

    def __init__(
        self,
        settings: RunSettings,
        partition_id: int,
        num_partitions: int,
        state: DeviceState | None = None,
        trust: DeviceTrust = NOBODY_KNOWN,
        limits: RunLimits = NO_LIMITS,
        own: RunSettings | None = None,
        owns_data: bool = False,
    ) -> None:
        self.settings = settings
        self.state = state
        self.trust = trust
        self.limits = limits
        self.own = settings if own is None else own
        self.partition_id = partition_id
        self.owns_data = owns_data
        self._num_partitions = num_partitions
        self._records: Records | None = None

    def dataset(self) -> FederatedDataset:
        """Read the data that the client's records are in."""
        if self.owns_data:
            return load_own_dataset(self.own.data)
        return load_dataset(self.own.data, self._num_partitions, self.settings.seed)

    def records(self) -> Records:
        """Read the client's records."""
        if self._records is None:
            place = 0 if self.owns_data else self.partition_id
            self._records = self.dataset().partition(place)
        return self._records

    def num_records(self) -> int:
        """Return n_k; reads the data."""
        return len(self.records())

    def num_records_for(self, request: Message) -> int:
        """Return n_k for a request whose model, if it has one, can be trained here.

        A request with another's is public, and refused before it is charged; later it would be a
        failure that may depend on data, and an upload of noise.

        Raises
        ------
        ValueError
            If the names or the shapes of its arrays are not the model's.
        """
        arrays = request.content.get("arrays")
        if isinstance(arrays, ArrayRecord):
            from fl_app.local_model import shared_model
            from fl_app.model_arrays import check_shapes

            shapes = {name: tuple(array.shape) for name, array in arrays.items()}
            check_shapes(shared_model(self.settings, self.dataset()), shapes)
        return self.num_records()

    def local_update(self, work: LocalWork) -> Trained:
        """Run the local steps of a round."""
        from fl_app.local_model import run_steps

        return run_steps(self.settings, self.dataset(), self.records(), work)
