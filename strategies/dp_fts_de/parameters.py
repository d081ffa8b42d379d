"""The parameters of DP-FTS-DE, as the server sends them and the agent checks them."""

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strategies.mechanisms.accounting import (
    ACCOUNTANTS,
    COMPARISON_ACCOUNTANTS,
    GaussianReleases,
)
from strategies.mechanisms.eigenfunctions import MIN_LENGTHSCALE
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.mechanisms.rng import RANDOMNESS_KINDS, RandomnessKind
from strategies.mechanisms.subregion_sums import EmphasisSchedule
from strategies.mechanisms.subregions import Subregions, split_domain

WORDS = {
    "mode": ("sound", "paper"),
    "features": ("rff", "eigen"),
    "initial": ("everywhere", "own_box"),
    "upload": ("sampled", "all"),
    "upload_kind": ("mean", "sample"),
    "use_broadcast": ("fresh", "every_round"),
    "control": ("none", "random", "no_sharing", "oracle"),
    "accountant": ("auto", *ACCOUNTANTS, *COMPARISON_ACCOUNTANTS),
    "randomness": RANDOMNESS_KINDS,
}
PROB_OWN_SCHEDULES = ("one_minus_inverse", "one_minus_inverse_square")
_NUMBERS = (
    *("lengthscale", "outputscale", "regularizer", "sample_rate", "clipping_norm"),
    *("noise_multiplier", "target_epsilon", "target_delta", "emphasis_start"),
)
MAX_FEATURES = 10_000
MAX_DIMENSION = 64
MIN_RIDGE = 1e-8


@dataclass(frozen=True)
class DpFtsDeParameters:
    """One frozen set of parameters; an agent's step is a function of it and of its observations.

    Round 1 is the initialisation. What is released in round t is queried in iteration t, which is
    round t + 1.

    Attributes
    ----------
    num_agents : int
        N of the run, absent ones too; public.
    dimension : int
        D, axes of the search space, which is the unit cube.
    num_random_features : int
        M, numbers in an agent's vector; of the plan of a run (`choose_num_features`).
    splittable : tuple of bool
        Which axes may be cut into sub-regions; empty: all.
    mode : {"sound", "paper"}
        `paper`: the published settings, and noise for the sensitivity S / q instead of c S / q.
    features : {"rff", "eigen"}
        Random Fourier features, drawn from the public seed, or the leading eigenfunctions of the
        squared exponential kernel.
    lengthscale, outputscale : float
        l in units of the cube's side, and v, of the kernel that the features stand for.
    regularizer : float
        lambda, at least 1e-8 v.
    standardize : bool
        Whether an agent models its values minus their mean, over their standard deviation.
    num_subregions : int
        P, a power of 2.
    num_initial : int
        N_init >= 1, random points that an agent starts with.
    initial : {"everywhere", "own_box"}
        Where these lie: in the whole domain, or in the agent's own sub-region.
    sample_rate : float
        q in (0, 1]: each agent is in the round's sample by itself (Poisson).
    clipping_norm : float or None
        S > 0: a vector is clipped to L2 norm S / sqrt(P); None: not clipped, without noise only.
    noise_multiplier, target_epsilon : float or None
        z = noise std / sensitivity (0: no noise), and the total epsilon. At least one is given.
        With the target alone z is planned for it; with both, releases stop before it is exceeded.
    target_delta : float
        In (0, 1).
    accountant : {"auto", "pld", "rdp", "moments", "closed_form"}
        How epsilon is counted; `closed_form` with q = 1 only, where it is exact.
    release_rounds : tuple of int
        Rounds, increasing, whose sums are released; empty: every round but the last.
    upload : {"sampled", "all"}
        Who uploads: the round's sample, in rounds with a release; or every agent in every round.
    upload_kind : {"mean", "sample"}
        What: the posterior mean nu of the weights, or a draw from their posterior.
    use_broadcast : {"fresh", "every_round"}
        When the broadcast may be queried: in the round after its release, or in every one.
    prob_own : float or {"one_minus_inverse", "one_minus_inverse_square"}
        p_t, probability of a query of the agent's own where it could use the broadcast: a number
        in [0, 1], 1 - 1/t or 1 - 1/t^2.
    prior_mean : bool
        Whether the last broadcast is the prior mean of an agent's own Gaussian process, times a
        factor >= 0 fitted on its own values.
    emphasis_start : float
        a_1 of the weights (`EmphasisSchedule`).
    emphasis_rounds, emphasis_fall_rounds : int
        Rounds for which a_t stays there, and in which it falls to 1.
    fit_every : int
        Observations, >= 1, after which an agent fits its own hyper-parameters anew.
    control : {"none", "random", "no_sharing", "oracle"}
        A control of the experiment: broadcast a random vector of the same norm; nobody sends
        anything; or the plain average over all agents, without clipping and noise.
    randomness : {"seeded", "secret"}
        Where noise and draws come from.
    seed : int
        Seed of a seeded run, and of the random features in any run.
    """

    num_agents: int
    dimension: int
    num_random_features: int
    splittable: tuple[bool, ...] = ()
    mode: str = "sound"
    features: str = "eigen"
    lengthscale: float = 0.25
    outputscale: float = 1.0
    regularizer: float = 0.01
    standardize: bool = True
    num_subregions: int = 1
    num_initial: int = 10
    initial: str = "everywhere"
    sample_rate: float = 1.0
    clipping_norm: float | None = 1.0
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    target_delta: float = 1e-5
    accountant: str = "auto"
    release_rounds: tuple[int, ...] = ()
    upload: str = "sampled"
    upload_kind: str = "mean"
    use_broadcast: str = "fresh"
    prob_own: float | str = 0.0
    prior_mean: bool = True
    emphasis_start: float = 16.0
    emphasis_rounds: int = 10
    emphasis_fall_rounds: int = 30
    fit_every: int = 1
    control: str = "none"
    randomness: RandomnessKind = "seeded"
    seed: int = 0

    def __post_init__(self) -> None:
        for key, allowed in WORDS.items():
            if getattr(self, key) not in allowed:
                raise ParameterError(key, getattr(self, key), ", ".join(allowed))
        for key in ("num_agents", "dimension", "num_random_features", "num_initial", "fit_every"):
            check_integer(key, getattr(self, key), 1)
        check_integer("seed", self.seed, 0)
        for key, most in (("num_random_features", MAX_FEATURES), ("dimension", MAX_DIMENSION)):
            if getattr(self, key) > most:
                raise ParameterError(key, getattr(self, key), f"at most {most}")
        for key in ("lengthscale", "outputscale", "regularizer"):
            check_number(key, getattr(self, key), positive=True)
        # Below it, a ridge is lost in the rounding of some thousand observations.
        if self.regularizer < MIN_RIDGE * self.outputscale:
            rule = f"at least {MIN_RIDGE:g} outputscale = {MIN_RIDGE * self.outputscale:g}"
            raise ParameterError("regularizer", self.regularizer, rule)
        for key in ("clipping_norm", "target_epsilon"):
            check_number(key, getattr(self, key), positive=True, optional=True)
        check_number("noise_multiplier", self.noise_multiplier, positive=False, optional=True)
        check_number("sample_rate", self.sample_rate, positive=True, below=1.0 + 2.0**-52)
        ratio = (self.clipping_norm or 0.0) / self.sample_rate
        check_number("clipping_norm / sample_rate", ratio, positive=False)
        check_number("target_delta", self.target_delta, positive=True, below=1.0)
        for key in ("standardize", "prior_mean"):
            if not isinstance(getattr(self, key), bool):
                raise ParameterError(key, getattr(self, key), "true, false")
        if self.prob_own not in PROB_OWN_SCHEDULES:
            if isinstance(self.prob_own, str):
                allowed_words = ", ".join(PROB_OWN_SCHEDULES)
                raise ParameterError("prob_own", self.prob_own, f"a number, {allowed_words}")
            check_number("prob_own", self.prob_own, positive=False, below=1.0 + 2.0**-52)
        self._check_rounds()
        self._check_noise()
        if self.features == "eigen" and self.lengthscale < MIN_LENGTHSCALE:
            raise ParameterError(
                "lengthscale", self.lengthscale, f"at least {MIN_LENGTHSCALE} with features=eigen"
            )
        _emphasis(self)
        _boxes(self)

    def _check_rounds(self) -> None:
        rounds = self.release_rounds
        if not isinstance(rounds, tuple):
            raise ParameterError("release_rounds", rounds, "a list of rounds")
        for each in rounds:
            check_integer("release_rounds", each, 1)
        if list(rounds) != sorted(set(rounds)):
            raise ParameterError("release_rounds", list(rounds), "rounds in increasing order")

    def _check_noise(self) -> None:
        if self.noise_multiplier is None and self.target_epsilon is None:
            raise ParameterError(
                "noise_multiplier", None, "a number >= 0, or a target_epsilon to plan it for"
            )
        if self.clipping_norm is None and self.noise_multiplier != 0.0:
            raise ParameterError(
                "clipping_norm", None, "a number > 0 (null with noise_multiplier=0 only)"
            )
        if self.target_epsilon is not None and self.noise_multiplier == 0.0:
            raise ParameterError(
                "target_epsilon", self.target_epsilon, "null with noise_multiplier=0"
            )
        if self.accountant == "closed_form" and self.sample_rate < 1.0:
            raise ParameterError(
                "accountant",
                self.accountant,
                "auto, pld, rdp, moments with sample_rate < 1 (closed_form counts no sampling)",
            )
        if self.control == "oracle":
            if self.noise_multiplier != 0.0 or self.clipping_norm is not None:
                raise ParameterError(
                    "control", self.control, "oracle with noise_multiplier=0, clipping_norm=null"
                )
            if self.randomness == "secret":
                raise ParameterError("randomness", self.randomness, "seeded with control=oracle")

    @property
    def adds_noise(self) -> bool:
        """Whether releases carry noise."""
        return self.noise_multiplier != 0.0

    @property
    def boxes(self) -> Subregions:
        """The P sub-regions."""
        return _boxes(self)

    @property
    def emphasis(self) -> EmphasisSchedule:
        """a_t."""
        return _emphasis(self)

    @property
    def radius(self) -> float | None:
        """S / sqrt(P), the largest norm of a vector; None without clipping."""
        if self.clipping_norm is None:
            return None
        return float(self.clipping_norm / self.num_subregions**0.5)

    def releases_in(self, server_round: int) -> bool:
        """Return whether a round's sum shall be released."""
        if self.control == "no_sharing":
            return False
        return not self.release_rounds or server_round in self.release_rounds

    def num_planned(self, num_rounds: int) -> int:
        """Return the releases of a run: nobody queries what the last round would release."""
        return sum(self.releases_in(t) for t in range(1, num_rounds))

    def prob_own_in(self, iteration: int) -> float:
        """Return p_t of iteration t >= 1 (round t + 1)."""
        if isinstance(self.prob_own, str):
            power = 1 if self.prob_own == "one_minus_inverse" else 2
            return float(1.0 - 1.0 / iteration**power)
        return float(self.prob_own)

    def describe_releases(self, num_releases: int, noise_multiplier: float) -> GaussianReleases:
        """Say what the releases so far are to the accountant: a client is there, or is zero."""
        unsampled = self.sample_rate == 1.0 and self.accountant in ("auto", "closed_form")
        return GaussianReleases(
            noise_multiplier=noise_multiplier,
            num_releases=num_releases,
            unit="client",
            neighboring_relation="zero_out",
            sampling="none" if unsampled else "poisson",
            sample_rate=float(self.sample_rate),
        )

    def describe(self) -> str:
        """Say in one line what is released, for the log."""
        rounds = ", ".join(map(str, self.release_rounds)) or "all but the last"
        noise = f"target epsilon {self.target_epsilon}"
        if self.noise_multiplier is not None:
            noise = f"noise multiplier {self.noise_multiplier:.4g}"
        return (
            f"{self.num_agents} agents, D = {self.dimension}, M = {self.num_random_features}, "
            f"P = {self.num_subregions}, q = {self.sample_rate:g}, clipping norm "
            f"{self.clipping_norm}, {noise}, releases in rounds: {rounds}; control {self.control}"
        )

    def to_json(self) -> str:
        """Serialise for the wire; equal parameters give equal text."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "DpFtsDeParameters":
        """Parse and check what `to_json` wrote.

        Raises
        ------
        ParameterError
            If a key is unknown or missing, or a value is not allowed.
        """
        return _from_json(text)


# All four are asked for each message of a run, nearly always with the same argument.
@lru_cache(maxsize=16)
def _boxes(parameters: DpFtsDeParameters) -> Subregions:
    return split_domain(
        parameters.num_subregions, parameters.dimension, parameters.splittable or None
    )


@lru_cache(maxsize=16)
def _emphasis(parameters: DpFtsDeParameters) -> EmphasisSchedule:
    try:
        return EmphasisSchedule(
            parameters.emphasis_start, parameters.emphasis_rounds, parameters.emphasis_fall_rounds
        )
    except ParameterError as error:
        names = {"start": "emphasis_start", "num_constant": "emphasis_rounds"}
        key = names.get(error.key, "emphasis_fall_rounds")
        raise ParameterError(key, error.value, error.allowed) from None


@lru_cache(maxsize=16)
def _to_json(parameters: DpFtsDeParameters) -> str:
    values = dataclasses.asdict(parameters)
    # 1 and 1.0 are equal parameters, and shall be equal text.
    for key in _NUMBERS:
        values[key] = None if values[key] is None else float(values[key])
    if not isinstance(values["prob_own"], str):
        values["prob_own"] = float(values["prob_own"])
    return json.dumps(values, sort_keys=True)


@lru_cache(maxsize=16)
def _from_json(text: str) -> DpFtsDeParameters:
    try:
        values: dict[str, Any] = json.loads(text)
        names = {field.name for field in dataclasses.fields(DpFtsDeParameters)}
        if values.keys() != names:
            raise ParameterError("parameters", sorted(values.keys() ^ names), "each key, once")
        for key in ("splittable", "release_rounds"):
            values[key] = tuple(values[key])
        return DpFtsDeParameters(**values)
    except ParameterError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ParameterError("parameters", type(error).__name__, "what to_json writes") from None
