"""The methods' keys as frozen dataclasses; the files in conf/strategy explain each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fl_app.plain_mapping import PlainMapping


@dataclass(frozen=True)
class StrategySettings:
    """The method; the subclasses hold the keys of each."""

    name: Literal["dp_fedpaq", "niss", "dp_fts_de"]
    label: str | None = None
    mode: Literal["sound", "paper"] = "sound"

    @staticmethod
    def choose(values: Mapping[str, Any]) -> type["StrategySettings"]:
        """Return the dataclass that holds a method's keys."""
        name = values.get("name")
        return _CLASSES.get(name, TrainingSettings) if isinstance(name, str) else TrainingSettings


@dataclass(frozen=True)
class TrainingSettings(StrategySettings):
    """The keys of a method that trains one model: those of an update, and how it is made."""

    unit: Literal["record", "client"] = "record"
    neighboring_relation: Literal["replace_one", "add_or_remove_one", "zero_out"] = "replace_one"
    sensitivity: Literal["auto", "whole_update", "one_step", "convex"] = "auto"
    mechanism: Literal["update_noise", "dp_sgd"] = "update_noise"
    noise_at: Literal["client", "server"] = "client"
    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float = 1e-5
    clipping_norm: float | None = 1.0
    max_grad_norm: float | None = None
    feature_norm: float | None = None
    quantizer: Literal["none", "qsgd"] = "qsgd"
    num_levels: int | None = None
    target_bits: int | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int = 16
    sampling: Literal["fixed", "poisson"] = "fixed"
    sample_rate: float | None = None
    learning_rate: float = 0.1
    lr_schedule: Literal["constant", "inverse_rounds", "exponential"] = "constant"
    lr_decay: float = 1.0
    lr_decay_rounds: int = 1
    weight_decay: float = 0.0
    proximal: float = 0.0
    accountant: Literal["auto", "closed_form", "pld", "rdp"] = "auto"
    max_participations: int | None = None
    colluding_fraction: float = 0.1


@dataclass(frozen=True)
class CoalitionSettings:
    """Clients that offset their noise among themselves only.

    Attributes
    ----------
    clients : tuple of int
        Their numbers.
    colluding_fraction : float
        Share of them, in [0, 1), that may help the server.
    min_ready : int
        Clients of it, >= 2, below which none of them uploads.
    """

    clients: tuple[int, ...]
    colluding_fraction: float
    min_ready: int


@dataclass(frozen=True)
class NissSettings(TrainingSettings):
    """The keys of NISS (conf/strategy/niss.yaml): those of an update, and its own."""

    target_epsilons: PlainMapping | None = None
    pair_noise: Literal["gaussian", "uniform", "none"] = "gaussian"
    graph: Literal["complete", "sparse"] = "complete"
    expected_dropouts: int = 0
    min_ready: int | None = None
    max_dropouts: int | None = None
    max_attempts: int = 3
    coalitions: tuple[CoalitionSettings, ...] = ()
    weighting: Literal["uniform", "examples"] = "uniform"
    unit_noise_std: float | None = None
    tau: float | None = None
    collusion_bound: Literal["conservative", "optimistic"] = "conservative"


@dataclass(frozen=True)
class SearchSettings(StrategySettings):
    """The keys of DP-FTS-DE (conf/strategy/dp_fts_de.yaml): fields of `DpFtsDeParameters`."""

    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    target_delta: float = 1e-5
    accountant: Literal["auto", "closed_form", "pld", "rdp", "moments"] = "auto"
    clipping_norm: float | None = 1.0
    sample_rate: float = 1.0
    release_rounds: tuple[int, ...] | Literal["auto"] = "auto"
    upload: Literal["sampled", "all"] = "sampled"
    upload_kind: Literal["mean", "sample"] = "mean"
    num_random_features: int | None = None
    features: Literal["rff", "eigen"] = "eigen"
    lengthscale: float = 0.25
    outputscale: float = 1.0
    regularizer: float = 0.01
    standardize: bool = True
    num_subregions: int = 1
    num_initial: int = 10
    initial: Literal["everywhere", "own_box"] = "everywhere"
    use_broadcast: Literal["fresh", "every_round"] = "fresh"
    prob_own: float | Literal["one_minus_inverse", "one_minus_inverse_square"] = 0.0
    prior_mean: bool = True
    emphasis_start: float = 16.0
    emphasis_rounds: int = 10
    emphasis_fall_rounds: int = 30
    fit_every: int = 1
    control: Literal["none", "random", "no_sharing", "oracle"] = "none"


_CLASSES: dict[str, type[StrategySettings]] = {
    "dp_fedpaq": TrainingSettings,
    "niss": NissSettings,
    "dp_fts_de": SearchSettings,
}
