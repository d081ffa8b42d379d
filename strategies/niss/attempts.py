"""When a round is tried again: who must be ready, how many may vanish, and how often in all."""

from dataclasses import dataclass, replace

from strategies.mechanisms.parameter_checks import ParameterError, check_integer
from strategies.niss.parameters import NissParameters


@dataclass(frozen=True)
class AttemptLimits:
    """What an attempt needs to count, and how many there may be.

    Attributes
    ----------
    min_ready : int or None
        Ready clients, >= 2, below which a round is repeated; None: nine of ten of those asked.
    max_dropouts : int or None
        Ready clients that may vanish without a round being repeated; None: any number.
    max_attempts : int
        Tries of a round, >= 1. Those before a server was killed are among them: clients charged
        their uploads, and max_attempts bounds what a round may cost them.
    """

    min_ready: int | None = None
    max_dropouts: int | None = None
    max_attempts: int = 3

    def __post_init__(self) -> None:
        check_integer("min_ready", self.min_ready, 2, optional=True)
        check_integer("max_dropouts", self.max_dropouts, 0, optional=True)
        check_integer("max_attempts", self.max_attempts, 1)

    def fit(self, parameters: NissParameters) -> "AttemptLimits":
        """Return the limits for a run of these parameters: nobody may vanish with uniform masks.

        Raises
        ------
        ParameterError
            If the parameters contradict the limits.
        """
        if parameters.pair_noise == "uniform":
            if self.max_dropouts:
                raise ParameterError("max_dropouts", self.max_dropouts, "0 with pair_noise=uniform")
            return replace(self, max_dropouts=0)
        expected = parameters.expected_dropouts
        if self.max_dropouts is not None and expected > self.max_dropouts:
            # All rounds would be tried as often as they may, and most be given up.
            allowed = f"at most max_dropouts = {self.max_dropouts}"
            raise ParameterError("expected_dropouts", expected, allowed)
        return self

    def bear(self, num_dropped: int) -> bool:
        """Return whether a sum that so many ready clients left is used."""
        return self.max_dropouts is None or num_dropped <= self.max_dropouts
