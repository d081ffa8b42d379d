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
    noise_multiplier, sample_rate : float or None
        z and q of the releases, planned before the first round and kept all through a run.
    """

    num_rounds: int = 0
    num_releases: int = 0
    uplink_bytes: int = 0
    noise_multiplier: float | None = None
    sample_rate: float | None = None

    def begin_round(self) -> "ReleaseTally":
        """Count a round before anybody is asked."""
        return replace(self, num_rounds=self.num_rounds + 1)

    def plan(self, noise_multiplier: float, sample_rate: float) -> "ReleaseTally":
        """Keep the noise and the sampling that were planned.

        Raises
        ------
        ParameterError
            If others were planned before: all releases are counted with one multiplier and rate.
        """
        for key, value in (("noise_multiplier", noise_multiplier), ("sample_rate", sample_rate)):
            planned = getattr(self, key)
            if planned not in (None, value):
                raise ParameterError(key, value, f"{planned}, as the run began")
        return replace(
            self, noise_multiplier=float(noise_multiplier), sample_rate=float(sample_rate)
        )

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
        z, q = self.noise_multiplier, self.sample_rate
        if z is None or q is None:
            return whole and self.num_releases == 0 and z is q
        numbers = type(z) is float and math.isfinite(z) and z >= 0.0 and type(q) is float
        return whole and numbers and 0.0 < q <= 1.0
