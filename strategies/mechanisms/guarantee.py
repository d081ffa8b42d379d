"""What a run guarantees to whom, as one row; and when a number is no guarantee at all."""

from dataclasses import asdict, dataclass
from typing import Any

# Beyond these a number is no protection worth the name.
MAX_EPSILON = 1000.0
MAX_DELTA = 0.01
SEEDED = (
    "seeded run: noise and draws can be recomputed from the configuration, so this is not a "
    "release; epsilon is what the mechanism gives with secret randomness"
)


@dataclass(frozen=True)
class Guarantee:
    """One row of privacy.json: who learns how little, and what must hold for it.

    Attributes
    ----------
    adversary : str
        Who tries to learn: ``"server"`` (and whoever reads its traffic) or ``"model_user"``.
    colluding_fraction : float
        Share of the other clients that may help the adversary.
    unit, neighboring_relation : str
        What is hidden, and what neighbouring data sets differ in.
    epsilon : float or None
        Total over the run, of the most exposed client; None: no guarantee.
    delta : float or None
    accountant : str or None
    randomness : str
    assumptions : tuple of str
    valid : bool
        Whether this run may be called a release with this guarantee.
    why_not : str or None
    """

    adversary: str
    colluding_fraction: float
    unit: str
    neighboring_relation: str
    epsilon: float | None
    delta: float | None
    accountant: str | None
    randomness: str
    assumptions: tuple[str, ...]
    valid: bool
    why_not: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {**asdict(self), "assumptions": list(self.assumptions)}
