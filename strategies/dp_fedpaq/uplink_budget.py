"""The communication budget: K r beta <= B, checked before a run and before each round."""

from dataclasses import dataclass

from strategies.mechanisms.parameter_checks import ParameterError, check_integer


@dataclass(frozen=True)
class UplinkBudget:
    """Bits that all uploads of a run may take together (equation (12) of the paper).

    Attributes
    ----------
    bits : int or None
        B >= 1; None: no limit.
    """

    bits: int | None = None

    def __post_init__(self) -> None:
        check_integer("uplink_budget_bits", self.bits, 1, optional=True)

    def check_plan(self, num_rounds: int, num_sampled: int, upload_bits: int) -> None:
        """Raise ParameterError if K rounds of r uploads of beta bits exceed the budget.

        Uploads are sent in whole bytes.
        """
        upload_bits = _fill_bytes(upload_bits)
        planned = num_rounds * num_sampled * upload_bits
        if self.bits is not None and planned > self.bits:
            raise ParameterError(
                "uplink_budget_bits",
                self.bits,
                f"at least K r beta = {num_rounds} rounds * {num_sampled} clients * {upload_bits} "
                f"bits = {planned}",
            )

    def allows(self, spent_bits: int, num_asked: int, upload_bits: int) -> bool:
        """Return whether that many more uploads fit."""
        return self.bits is None or spent_bits + num_asked * _fill_bytes(upload_bits) <= self.bits


def _fill_bytes(bits: int) -> int:
    return -(-bits // 8) * 8
