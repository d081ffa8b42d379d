"""The parameters of DP-FedPaq, as the server sends them and the client checks them."""

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strategies.dp_fedpaq.parameter_rules import check_rules
from strategies.dp_fedpaq.update_sensitivity import update_sensitivity
from strategies.mechanisms.accounting import (
    ACCOUNTANTS,
    GaussianReleases,
    default_accountant,
)
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.quantization import check_num_levels
from strategies.mechanisms.rng import RANDOMNESS_KINDS, RandomnessKind
from strategies.mechanisms.sensitivity import LocalTraining, Sensitivity

WORDS = {
    "mode": ("sound", "paper"),
    "unit": ("record", "client"),
    "neighboring_relation": ("replace_one", "add_or_remove_one", "zero_out"),
    "sensitivity": ("whole_update", "one_step", "convex"),
    "mechanism": ("update_noise", "dp_sgd"),
    "noise_at": ("client", "server"),
    "accountant": ("auto", *ACCOUNTANTS),
    "sampling": ("fixed", "poisson"),
    "lr_schedule": ("constant", "inverse_rounds", "exponential"),
    "quantizer": ("none", "qsgd"),
    "randomness": RANDOMNESS_KINDS,
}


@dataclass(frozen=True)
class DpFedPaqParameters:
    """One frozen set of parameters; a round's client work is a function of it and the data.

    Attributes
    ----------
    num_participations : int
        Rounds in which one client uploads at most; the client counts them.
    mode : {"sound", "paper"}
        `paper`: the published noise, for comparison; it guarantees nothing.
    unit : {"record", "client"}
        Whose presence is hidden.
    neighboring_relation : {"replace_one", "add_or_remove_one", "zero_out"}
        What differs between neighbouring data sets.
    sensitivity : {"whole_update", "one_step", "convex"}
        How the update's sensitivity is bounded.
    mechanism : {"update_noise", "dp_sgd"}
        Noise on the whole update, or on the sum of clipped gradients in each local step.
    noise_at : {"client", "server"}
        Who adds the noise; `server` is the curator model, in which the server is trusted.
    clipping_norm : float or None
        S, largest L2 norm of the whole update; None: no clipping.
    max_grad_norm : float or None
        C, largest L2 norm of one record's gradient, for `one_step`, `dp_sgd` and mode `paper`.
    target_epsilon, noise_multiplier : float or None
        Exactly one is given: the total epsilon of a client over its participations (in mode
        `paper`: of each), from which each client computes its own noise, or z = noise std /
        sensitivity (0: no noise).
    target_delta : float
        The total delta, in (0, 1).
    accountant : {"auto", "closed_form", "pld", "rdp"}
        How epsilon is counted.
    training : LocalTraining or None
        What the local training does, as declared by its author; `convex` needs it.
    local_steps, local_epochs : int or None
        Exactly one is given: E batches of sampled records, or whole passes over all records.
    sampling : {"fixed", "poisson"}
        How `local_steps` draws records: E b of them, or each by itself.
    sample_rate : float or None
        Probability in (0, 1] that Poisson sampling draws a record: in a round, or for `dp_sgd` in a
        step.
    batch_size : int
        b; every batch mean divides by it.
    learning_rate, lr_schedule, lr_decay, lr_decay_rounds : float, str, float, int
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
    mode: str = "sound"
    unit: str = "record"
    neighboring_relation: str = "replace_one"
    sensitivity: str = "whole_update"
    mechanism: str = "update_noise"
    noise_at: str = "client"
    max_grad_norm: float | None = None
    clipping_norm: float | None = 1.0
    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float = 1e-5
    accountant: str = "auto"
    training: LocalTraining | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    sampling: str = "fixed"
    sample_rate: float | None = None
    batch_size: int = 16
    learning_rate: float = 0.1
    lr_schedule: str = "constant"
    lr_decay: float = 1.0
    lr_decay_rounds: int = 1
    quantizer: str = "qsgd"
    num_levels: int = 100
    randomness: RandomnessKind = "seeded"
    seed: int = 0

    def __post_init__(self) -> None:
        for key, allowed in WORDS.items():
            if getattr(self, key) not in allowed:
                raise ParameterError(key, getattr(self, key), ", ".join(allowed))
        for key in ("num_participations", "local_steps", "local_epochs", "batch_size"):
            check_integer(key, getattr(self, key), 1, optional=key.startswith("local"))
        check_integer("seed", self.seed, 0)
        check_integer("lr_decay_rounds", self.lr_decay_rounds, 1)
        for key in ("clipping_norm", "max_grad_norm", "target_epsilon"):
            check_number(key, getattr(self, key), positive=True, optional=True)
        check_number("noise_multiplier", self.noise_multiplier, positive=False, optional=True)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("target_delta", self.target_delta, positive=True, below=1.0)
        check_number("lr_decay", self.lr_decay, positive=True, below=1.0 + 1e-12)
        check_number(
            "sample_rate", self.sample_rate, positive=True, below=1.0 + 1e-12, optional=True
        )
        try:
            check_num_levels(self.num_levels)
        except ValueError as error:
            limits = str(error).rpartition("allowed: ")[2]
            raise ParameterError("num_levels", self.num_levels, limits) from None
        check_rules(self)

    @property
    def adds_noise(self) -> bool:
        """Whether uploads carry noise."""
        return self.target_epsilon is not None or self.noise_multiplier != 0.0

    @property
    def client_adds_noise(self) -> bool:
        """Whether a client adds noise to its finished update."""
        return self.adds_noise and self.noise_at == "client" and self.mechanism == "update_noise"

    @property
    def record_sampling(self) -> str:
        """The accountant's word for how a release draws records: none, fixed or poisson."""
        return self.sampling if self.unit == "record" and self.local_steps is not None else "none"

    @property
    def resolved_accountant(self) -> str:
        """The accountant that ``"auto"`` stands for."""
        if self.accountant == "auto":
            return default_accountant(self.unit, self.record_sampling)
        return self.accountant

    @property
    def clips_gradients(self) -> bool:
        """Whether the local steps clip the gradient of each record to `max_grad_norm`."""
        return self.max_grad_norm is not None

    @property
    def min_records(self) -> int:
        """Records that a client needs to take part: E b for a sample of fixed size, else one."""
        if self.local_steps is None or self.sampling == "poisson":
            return 1
        return self.local_steps * self.batch_size

    @property
    def releases_a_round(self) -> int:
        """Releases for the accountant in one participation: one, or E for `dp_sgd`."""
        return self.local_steps or 1 if self.mechanism == "dp_sgd" else 1

    @property
    def is_size_public(self) -> bool:
        """Whether a client's number of records is public.

        It is under replace_one for records, which keeps it; where a record or a whole client may
        come or go, nobody may see whether there were enough. Without noise nothing is hidden.
        """
        replaced = self.unit == "record" and self.neighboring_relation == "replace_one"
        return replaced or not self.adds_noise

    def inclusion_probability(self, num_records: int) -> float:
        """Probability p that a release draws a given record; 1 without sampling."""
        if self.record_sampling == "none":
            return 1.0
        if self.record_sampling == "poisson":
            assert self.sample_rate is not None
            return self.sample_rate
        return min(1.0, self.min_records / max(num_records, 1))

    def releases(
        self, noise_multiplier: float, num_records: int, participations: int
    ) -> GaussianReleases:
        """Say what happened to a client with `num_records` records, for the accountant."""
        return GaussianReleases(
            noise_multiplier=noise_multiplier,
            num_releases=participations * self.releases_a_round,
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            sampling=self.record_sampling,
            sample_rate=self.inclusion_probability(num_records),
        )

    def learning_rate_in_round(self, server_round: int) -> float:
        """Return eta of a round, counted from 1.

        `constant`: eta. `exponential`: eta * lr_decay^k, k = floor((round - 1) / lr_decay_rounds);
        where everybody takes part once in so many rounds, k counts participations.
        `inverse_rounds` (the published experiments): eta in rounds 1 and 2, then
        eta / ((i - 1) E + 1) with i = round - 1 and E the local steps or epochs.
        """
        if server_round < 1:
            raise ParameterError("server_round", server_round, ">= 1")
        if self.lr_schedule == "exponential":
            falls = (server_round - 1) // self.lr_decay_rounds
            return self.learning_rate * self.lr_decay**falls
        if self.lr_schedule == "inverse_rounds" and server_round > 2:
            work = self.local_steps if self.local_steps is not None else self.local_epochs
            assert work is not None
            return self.learning_rate / ((server_round - 2) * work + 1)
        return self.learning_rate

    def sensitivity_in_round(self, server_round: int) -> Sensitivity:
        """Bound the sensitivity of what a round's noise is added to; see `update_sensitivity`."""
        return update_sensitivity(self, server_round)

    def describe(self) -> str:
        """Say in one line what is done to an update, for the log."""
        noise = f"target epsilon {self.target_epsilon}"
        if self.target_epsilon is None:
            noise = f"noise multiplier {self.noise_multiplier}"
        return (
            f"unit {self.unit}, {self.neighboring_relation}, {self.mechanism} at the "
            f"{self.noise_at}, clipping norm {self.clipping_norm}, {noise}, quantiser "
            f"{self.quantizer}, <= {self.num_participations} participations"
        )

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
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ParameterError("parameters", type(error).__name__, "what to_json writes") from None
