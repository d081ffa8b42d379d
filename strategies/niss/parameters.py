"""The parameters of NISS, as the server sends them and the client checks them."""

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from strategies.dp_fedpaq.parameters import DpFedPaqParameters
from strategies.mechanisms.parameter_checks import ParameterError, check_integer, check_number
from strategies.niss.circles import Circle, Coalition
from strategies.niss.parameter_rules import check_rules, check_update_fields

WORDS = {
    "mode": ("sound", "paper"),
    "pair_noise": ("gaussian", "uniform", "none"),
    "graph": ("complete", "sparse"),
    "weighting": ("uniform", "examples"),
    "collusion_bound": ("conservative", "optimistic"),
}
_PLANNED = ("min_ready", "max_ready", "num_clients")
_UNPLANNED = 2**20  # so that any of the plan's own numbers may be smaller
SPARSE_FAILURE = 1e-9
"""Probability, in a round, that a sparse graph leaves a client with too few to hide among."""


@dataclass(frozen=True)
class NissParameters:
    """One frozen set of parameters; equal for all clients of a run, which their keys make sure of.

    Attributes
    ----------
    update : DpFedPaqParameters
        How an update is trained and clipped, and which noise is aimed at: its noise multiplier is
        that of a client against the server with colluders. Mode `sound`, noise at the client on the
        update, no quantiser.
    mode : {"sound", "paper"}
        `paper`: the published algorithm, for comparison; it guarantees nothing.
    pair_noise : {"gaussian", "uniform", "none"}
        What cancels: Gaussian noise, after which a sum with lost uploads can still be used, or
        masks uniform mod 2^32 (secure aggregation). `none`: nothing, each client's noise is whole
        (mode `paper` only: the published DP-FedAvg).
    graph : {"complete", "sparse"}
        Whether every two clients of a round share noise, or pairs drawn by their own secret
        (`uniform` only).
    colluding_fraction : float
        rho in [0, 1): share of a round's clients that may help the server. It draws the clients, so
        against a server that draws as it likes floor(rho `max_ready`) clients of the whole run may.
    expected_dropouts : int
        Clients that are expected to vanish after a round's ready set is named.
    min_ready : int
        Ready clients, >= 2, below which nobody uploads; the noise is calibrated for as many.
    max_ready : int
        Ready clients of a round at most.
    num_clients : int
        M, clients of the run.
    base_noise_multiplier : float
        z that every client's noise allows for at least; a client that needs more adds it itself.
    client_epsilons : tuple of (int, float)
        Total epsilon of single clients in place of `update.target_epsilon`.
    coalitions : tuple of Coalition
    weighting : {"uniform", "examples"}
        `examples`, by numbers of records, in mode `paper` only: they are private.
    unit_noise_std : float or None
        Mode `paper`: sigma of a share, in the unit of an update; None: that of `max_ready` - 1
        shares.
    tau : float or None
        Mode `paper`: tau in [0, 1]; None: from the colluding fraction.
    collusion_bound : {"conservative", "optimistic"}
        Mode `paper`: which reading of Theorem 3, tau^2 = rho or max(0, 2 rho - 1).
    """

    update: DpFedPaqParameters
    mode: str = "sound"
    pair_noise: str = "gaussian"
    graph: str = "complete"
    colluding_fraction: float = 0.1
    expected_dropouts: int = 0
    min_ready: int = 2
    max_ready: int = 2
    num_clients: int = 2
    base_noise_multiplier: float = 0.0
    client_epsilons: tuple[tuple[int, float], ...] = ()
    coalitions: tuple[Coalition, ...] = ()
    weighting: str = "uniform"
    unit_noise_std: float | None = None
    tau: float | None = None
    collusion_bound: str = "conservative"

    def __post_init__(self) -> None:
        for key, allowed in WORDS.items():
            if getattr(self, key) not in allowed:
                raise ParameterError(key, getattr(self, key), ", ".join(allowed))
        check_number("colluding_fraction", self.colluding_fraction, positive=False, below=1.0)
        check_integer("expected_dropouts", self.expected_dropouts, 0)
        check_integer("min_ready", self.min_ready, 2)
        check_integer("max_ready", self.max_ready, self.min_ready)
        check_integer("num_clients", self.num_clients, self.max_ready)
        check_number("base_noise_multiplier", self.base_noise_multiplier, positive=False)
        check_number("unit_noise_std", self.unit_noise_std, positive=True, optional=True)
        check_number("tau", self.tau, positive=False, below=1.0 + 1e-12, optional=True)
        for client, epsilon in self.client_epsilons:
            check_integer("target_epsilons", client, 0)
            check_number(f"target_epsilons.{client}", epsilon, positive=True)
        check_rules(self)

    @property
    def target_delta(self) -> float:
        """The run's delta in all."""
        return self.update.target_delta

    @property
    def gaussian_delta(self) -> float:
        """What of delta is left for the Gaussian noise: all but the failures of sparse graphs.

        Raises
        ------
        ParameterError
            If nothing is left.
        """
        if self.graph != "sparse":
            return self.update.target_delta
        left = self.update.target_delta - SPARSE_FAILURE * self.update.num_participations
        if left <= 0.0:
            raise ParameterError(
                "target_delta",
                self.update.target_delta,
                f"more than {SPARSE_FAILURE:g} for each of {self.update.num_participations} "
                "participations with graph=sparse",
            )
        return left

    @property
    def min_records(self) -> int:
        """Records that a client needs to take part."""
        return self.update.min_records

    @property
    def is_personal(self) -> bool:
        """Whether the noise of a client depends on its number."""
        return bool(self.client_epsilons or self.coalitions)

    def circle_of(self, client: int) -> Circle:
        """Return those among whom a client's noise cancels."""
        circles = self.circles()
        for index, each in enumerate(self.coalitions):
            if client in each.clients:
                return circles[index]
        return circles[-1]

    def circle_size(self, circle: Circle) -> int:
        """Return how many clients of the run belong to a circle."""
        sizes = [len(each.clients) for each in self.coalitions]
        return sizes[circle.index - 1] if circle.index else self.num_clients - sum(sizes)

    def circles(self) -> list[Circle]:
        """Return the circles of all coalitions, and that of the clients outside of any, the last.

        It is among them if nobody is outside, too.
        """
        found = [
            Circle(
                index,
                each.colluding_fraction,
                each.min_ready,
                max(each.min_ready, min(len(each.clients), self.max_ready)),
            )
            for index, each in enumerate(self.coalitions, start=1)
        ]
        outside = self.num_clients - sum(len(each.clients) for each in self.coalitions)
        most = max(self.min_ready, min(outside, self.max_ready))
        return [*found, Circle(0, self.colluding_fraction, self.min_ready, most)]

    def epsilon_of(self, client: int) -> float | None:
        """Return the total epsilon that a client aims at."""
        return dict(self.client_epsilons).get(client, self.update.target_epsilon)

    def describe(self) -> str:
        """Say in one line what is done to an update, for the log."""
        return (
            f"{self.mode}, {self.pair_noise} pair noise, {self.graph} graph, colluding fraction "
            f"{self.colluding_fraction}, {self.min_ready} to {self.max_ready} ready clients; "
            f"{self.update.describe()}"
        )

    def to_json(self) -> str:
        """Serialise for the wire; equal parameters give equal text."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "NissParameters":
        """Parse and check what `to_json` wrote.

        Raises
        ------
        ParameterError
            If a key is unknown, one without a default is missing, or a value is not allowed.
        """
        return _from_json(text)


def unplanned_parameters(**fields: Any) -> NissParameters:
    """Return the parameters of a run that is not planned yet.

    Parameters
    ----------
    **fields
        Of `NissParameters`, and of `DpFedPaqParameters` for its `update`.

    Raises
    ------
    ParameterError
        If one is not allowed.
    TypeError
        If there is none of that name.
    """
    names = {field.name for field in dataclasses.fields(NissParameters)} - {"update", *_PLANNED}
    check_update_fields(fields)
    # `mode` is this method's: the update's is always sound.
    own: dict[str, Any] = {key: fields.pop(key) for key in names & fields.keys()}
    update = DpFedPaqParameters(num_participations=1, **{"quantizer": "none", **fields})
    own |= dict.fromkeys(_PLANNED, _UNPLANNED)
    return NissParameters(update=update, **own)


# Asked for each message of a run, always with the same arguments.
@lru_cache(maxsize=16)
def fill_plan(
    expected: NissParameters, given: NissParameters, planned: tuple[int, int, int]
) -> NissParameters:
    """Return the expected parameters with what a run's plan adds.

    Parameters
    ----------
    expected : NissParameters
        What the run's settings stand for.
    given : NissParameters
        As the server sent them. Free to it are the participations, which the client counts, and
        the common noise: clients compute what they need beside it, and all were told the same.
    planned : tuple of int
        `min_ready`, `max_ready` and `num_clients` that the settings lead to: they decide how many
        colluders the noise allows for.
    """
    return dataclasses.replace(
        expected,
        update=dataclasses.replace(
            expected.update, num_participations=given.update.num_participations
        ),
        base_noise_multiplier=given.base_noise_multiplier,
        min_ready=planned[0],
        max_ready=planned[1],
        num_clients=planned[2],
    )


# Both are called for each message of a run, nearly always with the same argument.
@lru_cache(maxsize=16)
def _to_json(parameters: NissParameters) -> str:
    values = {
        field.name: getattr(parameters, field.name) for field in dataclasses.fields(parameters)
    }
    values["update"] = parameters.update.to_json()
    values["coalitions"] = [dataclasses.asdict(each) for each in parameters.coalitions]
    return json.dumps(values, sort_keys=True)


@lru_cache(maxsize=16)
def _from_json(text: str) -> NissParameters:
    try:
        values: dict[str, Any] = json.loads(text)
        values["update"] = DpFedPaqParameters.from_json(values["update"])
        values["coalitions"] = tuple(
            Coalition(tuple(each.pop("clients")), **each) for each in values["coalitions"]
        )
        values["client_epsilons"] = tuple(
            (client, epsilon) for client, epsilon in values["client_epsilons"]
        )
        return NissParameters(**values)
    except ParameterError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ParameterError("parameters", type(error).__name__, "what to_json writes") from None
