"""The keys of NISS in a configuration: refused where they would have no effect, else read."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fl_app.errors import ConfigError, show
from fl_app.settings import RunSettings
from fl_app.strategy_settings import NissSettings, TrainingSettings
from strategies.mechanisms.parameter_checks import ParameterError
from strategies.niss import Coalition
from strategies.niss.parameter_rules import check_update_fields

_SHARED = {field.name for field in dataclasses.fields(TrainingSettings)}
_OWN = [field for field in dataclasses.fields(NissSettings) if field.name not in _SHARED]
_DEFAULT_FRACTION = TrainingSettings("niss").colluding_fraction


def check_niss_keys(settings: RunSettings) -> None:
    """Refuse what NISS has no use for, and name it, before a rule names what follows from it.

    Raises
    ------
    ConfigError
        If a key is away from its default and would change nothing, or two contradict each other.
    """
    chosen = settings.strategy
    assert isinstance(chosen, NissSettings)
    if chosen.num_levels is not None:
        _refuse(chosen, "num_levels", "null with niss, which has no quantiser")
    if chosen.noise_at == "server":
        _check_central(chosen)
        return
    if chosen.sensitivity != "auto" or chosen.mode == "paper":
        check_update_fields(vars(chosen))
    else:
        # With auto, max_grad_norm chooses the sensitivity.
        check_update_fields({**vars(chosen), "max_grad_norm": None})
    if settings.num_clients is not None:
        _check_clients(chosen, settings.num_clients)
    masks_alone = (chosen.noise_multiplier, chosen.pair_noise) == (0.0, "uniform")
    if masks_alone and chosen.graph == "complete":
        _refuse_fraction(chosen, "without noise, which is all that allows for colluders")


def _check_central(chosen: NissSettings) -> None:
    """Check NISS at a trusted server, where no noise needs to cancel."""
    if chosen.mode == "paper":
        _refuse(chosen, "noise_at", "client with strategy.mode=paper")
    if chosen.mechanism != "update_noise":
        _refuse(chosen, "mechanism", "update_noise with niss")
    for field in _OWN:
        if getattr(chosen, field.name) != field.default:
            default = show(field.default)
            _refuse(chosen, field.name, f"{default} with strategy.noise_at=server")


def _check_clients(chosen: NissSettings, num_clients: int) -> None:
    """Check client numbers, and that what is said of those outside of coalitions concerns some."""
    numbers = {
        "coalitions": [client for each in chosen.coalitions for client in each.clients],
        "target_epsilons": list(dict(read_epsilons(chosen))),
    }
    for key, members in numbers.items():
        if max(members, default=0) >= num_clients:
            allowed = f"client numbers 0 to {num_clients - 1}"
            raise ConfigError(f"strategy.{key}", max(members), allowed)
    if len(set(numbers["coalitions"])) == num_clients:
        nobody = "where every client is in a coalition, which has its own"
        if chosen.min_ready is not None:
            _refuse(chosen, "min_ready", f"null {nobody}")
        _refuse_fraction(chosen, nobody)


def _refuse_fraction(chosen: NissSettings, reason: str) -> None:
    if chosen.colluding_fraction != _DEFAULT_FRACTION:
        _refuse(chosen, "colluding_fraction", f"{_DEFAULT_FRACTION} {reason}")


def _refuse(chosen: NissSettings, key: str, allowed: str) -> None:
    raise ConfigError(f"strategy.{key}", getattr(chosen, key), allowed)


def read_coalitions(chosen: NissSettings) -> tuple[Coalition, ...]:
    """Return the coalitions; the ParameterError of one that is none says which."""
    found = []
    for index, each in enumerate(chosen.coalitions):
        try:
            found.append(Coalition(**vars(each)))
        except ParameterError as error:
            key = error.key.replace("coalitions", f"coalitions[{index}]", 1)
            raise ParameterError(key, error.value, error.allowed) from None
    return tuple(found)


def read_epsilons(chosen: NissSettings) -> tuple[tuple[int, float], ...]:
    """Return the targets of single clients, by client number.

    Raises
    ------
    ConfigError
        Naming the client, if its number or its target is none.
    """
    found = {}
    given: Mapping[str, Any] = chosen.target_epsilons or {}
    for name, epsilon in given.items():
        if not (name.isascii() and name.isdecimal() and str(int(name)) == name):
            raise ConfigError("strategy.target_epsilons", name, "client numbers from 0 as names")
        number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
        if not number or not 0.0 < epsilon < math.inf:
            allowed = f"a number > 0, the total epsilon of client {name}"
            raise ConfigError(f"strategy.target_epsilons.{name}", epsilon, allowed)
        found[int(name)] = float(epsilon)
    return tuple(sorted(found.items()))
