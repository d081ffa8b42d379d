"""What the rounds of a run add up to: replaced after each round, kept in checkpoints."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from strategies.mechanisms.parameter_checks import ParameterError


@dataclass(frozen=True)
class ReleaseTally:
    """What happened so far.

    Attributes
    ----------
    num_rounds : int
        Rounds begun.
    num_releases : int
        T, sums that were released.
    uplink_bytes : int
        Of all replies.
    noise_multiplier : float or None
        z of the releases, planned before the first round and kept all through a run.
    """

    num_rounds: int = 0
    num_releases: int = 0
    uplink_bytes: int = 0
    noise_multiplier: float | None = None

    def begin_round(self) -> "ReleaseTally":
        """Count a round before anybody is asked."""
        return replace(self, num_rounds=self.num_rounds + 1)

    def plan(self, noise_multiplier: float) -> "ReleaseTally":
        """Keep the noise that was planned.

        Raises
        ------
        ParameterError
            If other noise was planned before: all releases are counted with one multiplier.
        """
        if self.noise_multiplier not in (None, noise_multiplier):
            raise ParameterError(
                "noise_multiplier", noise_multiplier, f"{self.noise_multiplier}, as the run began"
            )
        return replace(self, noise_multiplier=float(noise_multiplier))

    def release(self) -> "ReleaseTally":
        """Count a release before it is broadcast."""
        if self.noise_multiplier is None:
            raise RuntimeError("a release before its noise was planned")
        return replace(self, num_releases=self.num_releases + 1)

    def receive(self, uplink_bytes: int) -> "ReleaseTally":
        """Count what arrived."""
        return replace(self, uplink_bytes=self.uplink_bytes + uplink_bytes)

    def export(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def restore(cls, values: Any) -> "ReleaseTally":
        """Return what `export` returned, or the same after a detour through JSON.

        Raises
        ------
        ValueError
            If it is something else.
        """
        try:
            tally = cls(**values)
        except TypeError:
            tally = None
        if tally is None or not tally._is_sound() or values.keys() != asdict(tally).keys():
            raise ValueError("state of a strategy: what export_state returns is needed")
        return tally

    def _is_sound(self) -> bool:
        counts = (self.num_rounds, self.num_releases, self.uplink_bytes)
        whole = all(type(count) is int and count >= 0 for count in counts)
        z = self.noise_multiplier
        if z is None:
            return whole and self.num_releases == 0
        return whole and type(z) is float and math.isfinite(z) and z >= 0.0
