"""The parameters of DP-FedPaq, as the server sends them and the client checks them."""

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from strategies.mechanisms.accounting import (
    ACCOUNTANTS,
    AccountingError,
    GaussianReleases,
    check_accountant,
    default_accountant,
)
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.quantization import check_num_levels
from strategies.mechanisms.rng import RANDOMNESS_KINDS, RandomnessKind
from strategies.mechanisms.sensitivity import (
    LocalTraining,
    Sensitivity,
    SensitivityError,
    allow_for_rounding,
    convex_sensitivity,
    tighter,
    whole_update_sensitivity,
)

Unit = Literal["record", "client"]
UNITS = ("record", "client")
NEIGHBORING_RELATIONS = ("replace_one", "add_or_remove_one", "zero_out")
SENSITIVITIES = ("whole_update", "convex")
QUANTIZERS = ("none", "qsgd")
LR_SCHEDULES = ("constant", "inverse_rounds", "exponential")


@dataclass(frozen=True)
class DpFedPaqParameters:
    """One frozen set of parameters; a round's client work is a function of it and the data.

    Attributes
    ----------
    num_participations : int
        Rounds in which one client uploads at most (T of the accountant); the client counts them.
    unit : {"record", "client"}
        Whose presence is hidden.
    neighboring_relation : {"replace_one", "add_or_remove_one", "zero_out"}
        What differs between neighbouring data sets.
    sensitivity : {"whole_update", "convex"}
        How the update's sensitivity is bounded.
    clipping_norm : float or None
        S, largest L2 norm of the whole update; None: no clipping, and so no guarantee.
    target_epsilon, noise_multiplier : float or None
        Exactly one is given: the total epsilon of a client over its participations, from which each
        client computes its own noise, or z = noise std / sensitivity (0: no noise).
    target_delta : float
        The total delta, in (0, 1).
    accountant : {"auto", "closed_form", "pld"}
        How epsilon is counted.
    training : LocalTraining or None
        What the local training does, as declared by its author; `convex` needs it.
    local_steps, local_epochs : int or None
        Exactly one is given: E batches of sampled records, or whole passes over all records.
    batch_size : int
        b; every batch mean divides by it.
    learning_rate, lr_schedule, lr_decay : float, str, float
        eta of the first round and how it falls with the rounds (`learning_rate_in_round`).
    quantizer : {"none", "qsgd"}
        `none` uploads float32.
    num_levels : int
        s of QSGD.
    randomness : {"seeded", "secret"}
        Where noise and draws come from.
    seed : int
        Seed of a seeded run.
    """

    num_participations: int
    unit: str = "record"
    neighboring_relation: str = "replace_one"
    sensitivity: str = "whole_update"
    clipping_norm: float | None = 1.0
    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float = 1e-5
    accountant: str = "auto"
    training: LocalTraining | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int = 16
    learning_rate: float = 0.1
    lr_schedule: str = "constant"
    lr_decay: float = 1.0
    quantizer: str = "qsgd"
    num_levels: int = 100
    randomness: RandomnessKind = "seeded"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_values()
        if (self.local_steps is None) == (self.local_epochs is None):
            raise ParameterError(
                "local_steps",
                {"local_steps": self.local_steps, "local_epochs": self.local_epochs},
                "exactly one of the two",
            )
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ParameterError(
                "target_epsilon",
                {"target_epsilon": self.target_epsilon, "noise_multiplier": self.noise_multiplier},
                "exactly one of the two (noise_multiplier 0: no noise)",
            )
        if self.clipping_norm is None and self.adds_noise:
            raise ParameterError(
                "clipping_norm",
                None,
                "a number > 0 when noise is added (without clipping no noise hides an update)",
            )
        if self.adds_noise:
            self._check_guarantee()

    def _check_values(self) -> None:
        words = {
            "unit": UNITS,
            "neighboring_relation": NEIGHBORING_RELATIONS,
            "sensitivity": SENSITIVITIES,
            "accountant": ("auto", *ACCOUNTANTS),
            "lr_schedule": LR_SCHEDULES,
            "quantizer": QUANTIZERS,
            "randomness": RANDOMNESS_KINDS,
        }
        for key, allowed in words.items():
            if getattr(self, key) not in allowed:
                raise ParameterError(key, getattr(self, key), ", ".join(allowed))
        for key in ("num_participations", "local_steps", "local_epochs", "batch_size"):
            check_integer(key, getattr(self, key), 1, optional=key.startswith("local"))
        check_integer("seed", self.seed, 0)
        for key in ("clipping_norm", "target_epsilon"):
            check_number(key, getattr(self, key), positive=True, optional=True)
        check_number("noise_multiplier", self.noise_multiplier, positive=False, optional=True)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("target_delta", self.target_delta, positive=True, below=1.0)
        check_number("lr_decay", self.lr_decay, positive=True, below=1.0 + 1e-12)
        try:
            check_num_levels(self.num_levels)
        except ValueError as error:
            limits = str(error).rpartition("allowed: ")[2]
            raise ParameterError("num_levels", self.num_levels, limits) from None

    def _check_guarantee(self) -> None:
        if self.sampling == "fixed" and self.neighboring_relation == "add_or_remove_one":
            raise ParameterError(
                "neighboring_relation",
                self.neighboring_relation,
                "replace_one with a sample of fixed size (local_steps); add_or_remove_one with "
                "local_epochs",
            )
        try:
            self.sensitivity_in_round(1)
        except SensitivityError as error:
            raise ParameterError("sensitivity", self.sensitivity, str(error)) from None
        try:
            check_accountant(self.resolved_accountant, self.releases(1.0, self.min_records, 1))
        except AccountingError as error:
            raise ParameterError("accountant", self.accountant, str(error)) from None

    @property
    def adds_noise(self) -> bool:
        """Whether uploads carry noise."""
        return self.target_epsilon is not None or self.noise_multiplier != 0.0

    @property
    def sampling(self) -> str:
        """The accountant's word for how records are chosen: ``"fixed"`` or ``"none"``."""
        return "fixed" if self.unit == "record" and self.local_steps is not None else "none"

    @property
    def resolved_accountant(self) -> str:
        """The accountant that ``"auto"`` stands for."""
        if self.accountant == "auto":
            return default_accountant(self.unit, self.sampling)
        return self.accountant

    @property
    def min_records(self) -> int:
        """Records that a client needs to take part: E b, or one with whole epochs."""
        return 1 if self.local_steps is None else self.local_steps * self.batch_size

    @property
    def is_size_public(self) -> bool:
        """Whether a client's number of records is public.

        It is under replace_one for records, which keeps it; where a record or a whole client may
        come or go, nobody may see whether there were enough. Without noise nothing is hidden.
        """
        replaced = self.unit == "record" and self.neighboring_relation == "replace_one"
        return replaced or not self.adds_noise

    def sample_rate(self, num_records: int) -> float:
        """Probability p = E b / n that a record is drawn in a round; 1 without sampling."""
        if self.sampling == "none":
            return 1.0
        return min(1.0, self.min_records / max(num_records, 1))

    def releases(
        self, noise_multiplier: float, num_records: int, num_releases: int
    ) -> GaussianReleases:
        """Say what happened to a client with `num_records` records, for the accountant."""
        return GaussianReleases(
            noise_multiplier=noise_multiplier,
            num_releases=num_releases,
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            sampling=self.sampling,
            sample_rate=self.sample_rate(num_records),
        )

    def learning_rate_in_round(self, server_round: int) -> float:
        """Return eta of a round, counted from 1.

        `constant`: eta. `exponential`: eta * lr_decay^(round - 1). `inverse_rounds` (the published
        experiments): eta in rounds 1 and 2, then eta / ((i - 1) E + 1) with i = round - 1 and E the
        local steps or epochs.
        """
        if server_round < 1:
            raise ParameterError("server_round", server_round, ">= 1")
        if self.lr_schedule == "exponential":
            return self.learning_rate * self.lr_decay ** (server_round - 1)
        if self.lr_schedule == "inverse_rounds" and server_round > 2:
            work = self.local_steps if self.local_steps is not None else self.local_epochs
            assert work is not None
            return self.learning_rate / ((server_round - 2) * work + 1)
        return self.learning_rate

    def sensitivity_in_round(self, server_round: int) -> Sensitivity:
        """Bound the update's L2 sensitivity in a round.

        Clipping is a projection on a ball and moves no two points apart, so under `convex` the
        smaller of both bounds holds.

        Raises
        ------
        SensitivityError
            If a condition of the bound is broken; it names all of them.
        """
        if self.clipping_norm is None:
            raise SensitivityError("clipping_norm: None; allowed: a number > 0 to bound an update")
        whole = whole_update_sensitivity(
            self.clipping_norm, unit=self.unit, neighboring_relation=self.neighboring_relation
        )
        if self.sensitivity == "whole_update":
            return whole
        if self.training is None:
            raise SensitivityError(
                "training: None; allowed: a LocalTraining that says what the training does"
            )
        rate = self.learning_rate_in_round(server_round)
        training = dataclasses.replace(
            self.training,
            learning_rates=(rate,),
            batch_size=self.batch_size,
            sampling=self.sampling,
            disjoint_batches=self.local_steps is not None,
            full_batches=self.local_steps is not None,
        )
        convex = convex_sensitivity(
            training, unit=self.unit, neighboring_relation=self.neighboring_relation
        )
        # Both are conditions of the bound, checked above.
        assert self.local_steps is not None
        assert training.feature_norm is not None
        rounded = allow_for_rounding(
            convex,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            feature_norm=training.feature_norm,
        )
        return tighter(rounded, whole)

    def to_json(self) -> str:
        """Serialise for the wire; equal parameters give equal text."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "DpFedPaqParameters":
        """Parse and check what `to_json` wrote.

        Raises
        ------
        ParameterError
            If a key is unknown or missing, or a value is not allowed.
        """
        return _from_json(text)


# Both are called for each message of a run, nearly always with the same argument.
@lru_cache(maxsize=16)
def _to_json(parameters: DpFedPaqParameters) -> str:
    return json.dumps(dataclasses.asdict(parameters), sort_keys=True)


@lru_cache(maxsize=16)
def _from_json(text: str) -> DpFedPaqParameters:
    try:
        values: dict[str, Any] = json.loads(text)
        training = values.pop("training")
        if training is not None:
            training["learning_rates"] = tuple(training["learning_rates"])
            training = LocalTraining(**training)
        return DpFedPaqParameters(**values, training=training)
    except ParameterError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ParameterError("parameters", type(error).__name__, "what to_json writes") from None
