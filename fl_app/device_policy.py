"""A device's policy: what its owner allows, from its node configuration, whatever a server asks.

Whether a client is a device is its own knowledge: it is one unless it runs on the in-process grid
or in a worker of Flower's simulation. A device without a readable policy takes part in nothing.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_app.data import DataSettings
from fl_app.data.sources import SOURCES
from fl_app.device_data import LANDMINE, OWN_DATA_KEY, OwnData, read_own_data
from fl_app.device_reach import OBJECTIVES, Reach, list_reach
from fl_app.device_trust import IDENTITY_KEY, TRUSTED_KEY, read_device_trust
from fl_app.engines import SIMULATED_KEY
from fl_app.errors import ConfigError, unknown_key
from fl_app.import_path import check_import_path
from fl_app.settings import RunSettings
from fl_app.strategy_settings import TrainingSettings
from strategies.niss.key_memory import NOBODY_KNOWN, DeviceTrust

PARTITION_KEY, NUM_PARTITIONS_KEY = "partition-id", "num-partitions"
STATE_KEY, DATA_KEY = "state-dir", "data-path"
MAX_EPSILON_KEY, MAX_DELTA_KEY = "max-epsilon", "max-delta"
UNIT_KEY, NOISE_KEY, SEEDED_KEY = "unit", "min-noise-multiplier", "allow-seeded"
STRATEGIES_KEY, CODE_KEY = "allowed-strategies", "allowed-code"
COLLUDING_KEY = "min-colluding-fraction"
# Of all runs together, where an owner limits epsilon and says nothing else: by the letter of the
# definition, a delta is the probability with which a record may be published as it is.
DEFAULT_MAX_DELTA = 1e-4
DEFAULT_COLLUDING_FRACTION = 0.1
STRATEGIES = ("dp_fedpaq", "niss", "dp_fts_de")
_KEYS = (
    *(PARTITION_KEY, NUM_PARTITIONS_KEY, STATE_KEY, DATA_KEY, MAX_EPSILON_KEY, MAX_DELTA_KEY),
    OWN_DATA_KEY,
    *(UNIT_KEY, NOISE_KEY, SEEDED_KEY, STRATEGIES_KEY, CODE_KEY, IDENTITY_KEY, TRUSTED_KEY),
    COLLUDING_KEY,
)


class PolicyRefusal(Exception):  # noqa: N818 - it is no error
    """A device's policy does not allow what is asked; the text is for the device's own log."""


@dataclass(frozen=True)
class DevicePolicy:
    """What the owner of a device allows.

    Attributes
    ----------
    partition_id, num_partitions : int
        Which client it is, and of how many; where data are shared, which part is its own.
    state_dir : Path or None
        The folder of its ledger and keys; None: simulated.
    data : DataSettings, LandmineSettings or None
        Its own data, in place of whatever the run's settings say about data; None: what comes with
        the code, of which it has a part.
    max_epsilon, max_delta : float or None
        The largest sums over all runs in `state_dir`, of what is shown if a record, or all of the
        client's data, are exchanged; None: no limit.
    unit : {"record", "client"}
        The least that a run must protect; a client covers its records.
    min_noise_multiplier : float or None
        The least z of noise of its own, whoever else adds some; 0 allows runs without noise; None:
        any noise.
    min_colluding_fraction : float
        Share of its trusted peers, in [0, 1), that a run in which they hide it must allow for as
        colluders, where epsilon is limited.
    allowed_strategies : frozenset of str, or None
        None: those in which the device itself adds the noise.
    allowed_code : frozenset of str
        Import paths ``package.module:name`` of functions that settings may name.
    allow_seeded : bool
        Whether it takes part in seeded runs, whose noise hides nothing.
    trust : DeviceTrust
    """

    partition_id: int
    num_partitions: int
    state_dir: Path | None = None
    data: OwnData | None = None
    max_epsilon: float | None = None
    max_delta: float | None = None
    unit: str = "record"
    min_noise_multiplier: float | None = None
    min_colluding_fraction: float = DEFAULT_COLLUDING_FRACTION
    allowed_strategies: frozenset[str] | None = None
    allowed_code: frozenset[str] = frozenset()
    allow_seeded: bool = False
    trust: DeviceTrust = NOBODY_KNOWN

    @property
    def is_device(self) -> bool:
        """Whether this is no simulated client."""
        return self.state_dir is not None

    def check(self, settings: RunSettings) -> None:
        """Refuse a run that asks for what is never allowed; reads no data.

        Raises
        ------
        PolicyRefusal
        """
        chosen, limited = settings.strategy, self.max_epsilon is not None
        seeded = settings.randomness == "seeded"
        if limited and seeded:
            raise PolicyRefusal(f"{MAX_EPSILON_KEY}: a seeded run keeps to no epsilon")
        if not self.is_device:
            return
        if seeded and not self.allow_seeded:
            raise PolicyRefusal(f"{SEEDED_KEY}: the run is seeded")
        at_server = isinstance(chosen, TrainingSettings) and chosen.noise_at == "server"
        trusting = at_server or not isinstance(chosen, TrainingSettings)
        allowed = self.allowed_strategies
        if chosen.name not in allowed if allowed is not None else trusting:
            raise PolicyRefusal(f"{STRATEGIES_KEY}: {chosen.name}, noise at the server: {trusting}")
        if at_server and (limited or self.min_noise_multiplier):
            raise PolicyRefusal("noise_at=server: the device cannot hold anybody to that noise")
        if self.unit == "client" and getattr(chosen, "unit", "client") != "client":
            raise PolicyRefusal(f"{UNIT_KEY}: the run protects records only")
        silent = getattr(chosen, "noise_multiplier", 0.0) == 0.0
        silent = silent or getattr(chosen, "control", "none") == "oracle"
        noisy = chosen.mode == "sound" and not silent
        if not noisy and not at_server and (limited or self.min_noise_multiplier != 0.0):
            raise PolicyRefusal(f"{NOISE_KEY}: the run has no noise that a proof covers")
        if type(settings.objective) not in OBJECTIVES:
            raise PolicyRefusal("objective: not one that is known to keep to the policy")
        self._check_reach(settings)

    def _check_reach(self, settings: RunSettings) -> None:
        """Refuse functions and files that the owner has not named, and fields of unknown use."""
        for name, reach, value in list_reach(self._leave_out_own(self.localize(settings))):
            # Named functions would run on the device.
            if reach is Reach.CODE and value not in self.allowed_code:
                raise PolicyRefusal(f"{CODE_KEY}: the settings name {value}")
            if reach is Reach.FILES:
                raise PolicyRefusal(f"{DATA_KEY}: {name} names files beside it")
            if reach is Reach.UNDECIDED:
                raise PolicyRefusal(f"{name}: not known to keep to the policy")

    def _leave_out_own(self, localized: RunSettings) -> RunSettings:
        """Return what of localized settings is the server's, and has an influence."""
        if self.data is None:
            return localized
        objective = localized.objective
        if objective is not None and objective.name == LANDMINE:
            objective = replace(objective, root=None)  # type: ignore[call-arg]
        return replace(localized, data=DataSettings(), objective=objective)

    def localize(self, settings: RunSettings) -> RunSettings:
        """Return the settings with the device's own data in place of what they say about data.

        With data of its own, what the settings say has no influence, and refuses nothing either: an
        answer to it would be one about the data.

        Raises
        ------
        PolicyRefusal
            If they name files, and the owner has not named any; or if the run needs data of another
            kind than the device's.
        """
        if not self.is_device:
            return settings
        objective, own = settings.objective, self.data
        name = None if objective is None else objective.name
        uses_data = objective is None or objective.uses_data
        if own is None:
            data = settings.data
            # A function reads what is the device's own, and the settings would divide it.
            if SOURCES[data.name].has_root or name == LANDMINE:
                raise PolicyRefusal(f"{DATA_KEY}: not given, for data that do not come with code")
            return settings
        if uses_data if own.name == LANDMINE else name == LANDMINE:
            raise PolicyRefusal(f"{OWN_DATA_KEY}: {own.name}, which is not what the run needs")
        if name == LANDMINE:
            objective = replace(objective, root=own.root)  # type: ignore[type-var]
            return replace(settings, objective=objective)
        if uses_data and isinstance(own, DataSettings):
            return replace(settings, data=own)
        return settings


def is_simulated(node_config: Mapping[str, object]) -> bool:
    """Return whether this client is part of a simulation, as only its own process can know."""
    if node_config.get(SIMULATED_KEY) is True:
        return True
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


def read_policy(node_config: Mapping[str, Any]) -> DevicePolicy:
    """Return a node's policy; a simulated one has limits on epsilon and a trust list only.

    Raises
    ------
    ConfigError
        For whatever is not allowed, or missing: a policy that cannot be read allows nothing.
    """
    simulated = is_simulated(node_config)
    partitions = _read_count(node_config, NUM_PARTITIONS_KEY, 1)
    number = _read_count(node_config, PARTITION_KEY, 0)
    if number >= partitions:
        raise ConfigError(PARTITION_KEY, number, f"below {NUM_PARTITIONS_KEY} = {partitions}")
    if simulated:
        return DevicePolicy(
            number,
            partitions,
            max_epsilon=read_limit(node_config, MAX_EPSILON_KEY),
            trust=read_device_trust(node_config),
        )
    for key in node_config:
        if key not in _KEYS:
            raise unknown_key(key, _KEYS)
    state = _read_path(node_config, STATE_KEY)
    if state is None:
        raise ConfigError(STATE_KEY, None, "an absolute path: a device keeps a ledger")
    unit, seeded = node_config.get(UNIT_KEY, "record"), node_config.get(SEEDED_KEY, False)
    if unit not in ("record", "client"):
        raise ConfigError(UNIT_KEY, unit, "record, client")
    if not isinstance(seeded, bool):
        raise ConfigError(SEEDED_KEY, seeded, "true, false")
    return DevicePolicy(
        number,
        partitions,
        state_dir=state,
        data=read_own_data(node_config, _read_path(node_config, DATA_KEY)),
        max_epsilon=read_limit(node_config, MAX_EPSILON_KEY),
        max_delta=_read_max_delta(node_config),
        unit=unit,
        min_noise_multiplier=read_limit(node_config, NOISE_KEY, positive=False),
        min_colluding_fraction=_read_colluding_fraction(node_config),
        allowed_strategies=_read_strategies(node_config),
        allowed_code=_read_code(node_config),
        allow_seeded=seeded,
        trust=read_device_trust(node_config),
    )


def _read_count(node_config: Mapping[str, Any], key: str, least: int) -> int:
    value = node_config.get(key)
    if type(value) is not int or value < least:
        raise ConfigError(key, value, f"an integer >= {least}")
    return value


def read_limit(
    node_config: Mapping[str, Any], key: str, *, positive: bool = True, below: float = math.inf
) -> float | None:
    """Return a limit; None without one. ConfigError if it is no number in its range."""
    given = node_config.get(key)
    if given is None:
        return None
    try:
        limit = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        limit = math.nan
    if not 0.0 <= limit < below or (positive and limit == 0.0):
        allowed = f"a number {'>' if positive else '>='} 0"
        raise ConfigError(key, given, allowed if below == math.inf else f"{allowed}, < {below:g}")
    return limit


def _read_max_delta(node_config: Mapping[str, Any]) -> float | None:
    given = read_limit(node_config, MAX_DELTA_KEY, below=1.0)
    return given if given is not None else default_max_delta(node_config.get(MAX_EPSILON_KEY))


def default_max_delta(max_epsilon: object) -> float | None:
    """Return the limit on deltas of an owner who names none: there is one beside max-epsilon."""
    return None if max_epsilon is None else DEFAULT_MAX_DELTA


def _read_colluding_fraction(node_config: Mapping[str, Any]) -> float:
    given = read_limit(node_config, COLLUDING_KEY, positive=False, below=1.0)
    return DEFAULT_COLLUDING_FRACTION if given is None else given


def _read_path(node_config: Mapping[str, Any], key: str) -> Path | None:
    given = node_config.get(key)
    if given is None:
        return None
    if not isinstance(given, str) or not Path(given).is_absolute():
        raise ConfigError(key, given, "an absolute path")
    return Path(given)


def _read_names(node_config: Mapping[str, Any], key: str) -> list[str]:
    given = node_config[key]
    if not isinstance(given, str):
        raise ConfigError(key, given, "names with commas between them")
    return [name.strip() for name in given.split(",") if name.strip()]


def _read_strategies(node_config: Mapping[str, Any]) -> frozenset[str] | None:
    if STRATEGIES_KEY not in node_config:
        return None
    names = _read_names(node_config, STRATEGIES_KEY)
    for name in names:
        if name not in STRATEGIES:
            raise ConfigError(STRATEGIES_KEY, name, f"{', '.join(STRATEGIES)}; none: withdrawn")
    return frozenset(names)


def _read_code(node_config: Mapping[str, Any]) -> frozenset[str]:
    if CODE_KEY not in node_config:
        return frozenset()
    names = _read_names(node_config, CODE_KEY)
    for name in names:
        try:
            check_import_path(CODE_KEY, name)
        except ValueError:
            raise ConfigError(CODE_KEY, name, "import paths package.module:name") from None
    return frozenset(names)
