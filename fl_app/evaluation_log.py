"""What a client says of its own evaluations: in its own log, and nowhere else.

An exception's text and traceback may quote the data. A simulated client's log is a file of the
run's folder (`fl_app.run_log`); a device's is its own.
"""

import logging
import traceback
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fl_app.device_policy import is_simulated
from fl_app.objectives import Observation
from fl_app.run_log import find_client_log

# Of simulated clients in the node's context: a process may answer for many, or one message.
_RECORD, _KINDS = "evaluation-log", "kinds"
_OUTSIDE = "outside"
_log = logging.getLogger(__name__)


class EvaluationLog:
    """Tells of one client's evaluations that failed, or gave values outside the range.

    Each kind is warned of once in a run; of later failures of the same kind a simulation's log has
    a line each, which no terminal shows.

    Parameters
    ----------
    context : Context
        The node's, which keeps what was said of a simulated client.
    client : int
        The client's number.
    randomness : str
        Of the run: a secret simulation logs no values.
    """

    def __init__(self, context: Context, client: int, randomness: str) -> None:
        self._context = context
        self._client = client
        self._is_device = not is_simulated(context.node_config)
        self._randomness = randomness

    def tell_failure(self, number: int, found: Observation) -> None:
        """Log why the client's evaluation of this number, from 1, failed."""
        text = f"client {self._client}: evaluation {number} failed: {found.reason}"
        if not self._is_first(_name_kind(found)):
            _log.log(logging.WARNING if self._is_device else logging.INFO, text)
        elif found.error is None:
            _log.warning(text)
        else:
            where = find_client_log(Path(), self._randomness)
            place = "below" if self._is_device else f"in {where}"
            _log.warning("%s (traceback %s)", text, place, exc_info=found.error)

    def tell_outside(self, number: int, value: float, value_range: tuple[float, float]) -> None:
        """Log, once in a run, that a value was outside the objective's range."""
        if not self._is_first(_OUTSIDE):
            return
        is_secret = self._randomness == "secret" and not self._is_device
        # The server of a seeded simulation counts all of them, and warns itself.
        level = logging.WARNING if is_secret or self._is_device else logging.INFO
        what = "a value" if is_secret else f"the value {value:g}"
        low, high = value_range
        _log.log(
            level,
            "client %d: evaluation %d gave %s outside objective.low..high (%g to %g), which "
            "counts as the nearer end; further ones are not logged",
            *(self._client, number, what, low, high),
        )

    def _is_first(self, kind: str) -> bool:
        if self._is_device:
            said_here = _said_here(self._context.run_id, self._client)
            is_first = kind not in said_here
            said_here.add(kind)
            return is_first
        kept = self._context.state.get(_RECORD)
        said = kept.get(_KINDS) if isinstance(kept, ConfigRecord) else None
        kinds = [str(each) for each in said] if isinstance(said, list) else []
        if kind in kinds:
            return False
        self._context.state[_RECORD] = ConfigRecord({_KINDS: [*kinds, kind]})
        return True


@lru_cache(maxsize=16)
def _said_here(run: int, client: int) -> set[str]:
    """Return what this process has said of a device's run: only its folder outlives a process."""
    return set()


def _name_kind(found: Observation) -> str:
    """Return what makes failures the same: the exception's class, and the line that raised it."""
    if found.error is None:
        return str(found.reason)
    place = ""
    for frame, line in traceback.walk_tb(found.error.__traceback__):
        place = f"{frame.f_code.co_filename}:{line}"
    return f"{found.reason} {place}"
