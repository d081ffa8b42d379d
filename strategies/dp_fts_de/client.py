"""The agent's side of DP-FTS-DE: unpack, one step, pack; and the agent's own refusals."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from strategies.device_state import ContextState, DeviceState, LedgerEntry, Note, Observation
from strategies.dp_fedpaq.client import NOTHING_HIDDEN, digest_terms, hash_model
from strategies.dp_fedpaq.messages import REFUSED, MessageError, error_reply
from strategies.dp_fts_de.algorithm import (
    AgentStreams,
    Snap,
    choose_query,
    clip_vector,
    draw_initial_points,
    draw_vector,
)
from strategies.dp_fts_de.messages import Request, pack_vector, parse_request, step_reply
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.progress import Progress, read_progress, write_progress
from strategies.mechanisms.parameter_checks import MAX_MAGNITUDE, ParameterError
from strategies.mechanisms.rng import Randomness

METHOD = "dp_fts_de"
# Whatever numbers can do to a fit, the libraries' own errors included.
_NO_MODEL = (ArithmeticError, ValueError)
_log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Evaluate = Callable[[Floats], float]


def train(
    message: Message,
    context: Context,
    *,
    evaluate: Evaluate,
    accepts: Callable[[DpFtsDeParameters], bool] | None = None,
    terms: str = "",
    state: DeviceState | None = None,
    snap: Snap | None = None,
    failed_value: float = 0.0,
    value_range: tuple[float, float] | None = None,
    optimum: float | None = None,
    exact: Callable[[Floats], Floats] | None = None,
) -> Message:
    """Answer a request: one query of the agent's own objective, and a vector if it is asked for.

    Parameters
    ----------
    message : Message
        The server's request.
    context : Context
        The node's context.
    evaluate : callable
        The agent's objective, larger is better: a point of [0, 1]^D, as snapped, to a number.
    accepts : callable or None
        Whether the agent agrees to the parameters, asked before anything is evaluated.
    terms : str
        Whatever else the objective depends on; it may not change within a run.
    state : DeviceState or None
        Where observations and the run's entry are kept. None: in the node's context.
    snap : callable or None
        Maps a point to the one that stands for it, where axes are rounded.
    failed_value : float
        What an evaluation that fails counts as: public, the lowest value that there can be.
    value_range : tuple of float, or None
        Lowest and highest value that there can be, public: a finite one outside counts as the
        nearer end, and seeded runs report how many do. None: any value is taken.
    optimum : float or None
        The largest value of the objective where it is known, for regrets (seeded runs only).
    exact : callable or None
        From points, shape (n, D), to the values without noise that regrets are taken of, shape
        (n,); None: those observed.

    Returns
    -------
    Message
        Word that the step is done, with the clipped vector if asked for; or a refusal.

    Notes
    -----
    Formal guarantees, for requests that are delivered one at a time:

    * The reply depends on the observations only through the vector, of L2 norm at most S / sqrt(P)
      up to rounding where the run clips, and through how long it takes. An evaluation that raises,
      or gives no finite number, counts as `failed_value`. Where a model cannot be fitted, nothing
      is queried in the round, or the vector is zero: the agent's own log says so, and no reply.
    * One query a round (`num_initial` at first, and what is missing of them later). A round that is
      asked again goes on where it was interrupted, and gets the same bytes once it was answered; an
      earlier round is refused. Rounds that were missed are not made up.
    * A vector is given in rounds for which the parameters provide it. Parameters, terms and the
      agent's number hold for the run.
    * Values for experiments are added in seeded runs only.
    """
    if not abs(failed_value) <= MAX_MAGNITUDE:
        raise ParameterError("failed_value", failed_value, "a finite number")
    if value_range and not -math.inf < value_range[0] < value_range[1] < math.inf:
        raise ParameterError("value_range", value_range, "two finite numbers, low < high")
    try:
        request = parse_request(message)
        accepted = accepts is None or accepts(request.parameters)
    except (MessageError, ParameterError, ValueError) as error:
        _log.warning("request refused: %s", error)
        return error_reply(message, REFUSED, "request refused by the agent")
    if not accepted:
        return error_reply(message, REFUSED, "parameters refused by the agent")
    memory = ContextState(context) if state is None else state
    entry = memory.read_entry(METHOD)
    agreed = digest_terms(request.parameters.to_json(), f"{request.agent}\n{terms}")
    if entry.terms not in ("", agreed):
        return error_reply(message, REFUSED, "parameters or number changed within a run")
    asked = hash_model(request.arrays, [request.server_round, agreed])
    is_repeat = request.server_round == entry.last_round and asked == _asked_of(entry)
    if request.server_round <= entry.last_round and not is_repeat:
        return error_reply(message, REFUSED, "round already answered")
    observations = memory.read_observations()
    if not _are_whole(observations, entry, request.parameters.dimension):
        _log.error("observations are missing or damaged: nothing is answered any more")
        return error_reply(message, REFUSED, "observations are missing or damaged")
    if not is_repeat:
        entry = _begin_round(memory, entry, request, agreed, f"{len(observations)}/{asked}")
    if not entry.reply:
        step = _Step(request, memory, observations, evaluate, snap, failed_value, value_range)
        num_before = _count_before(entry)
        vector, clipped = step.run(num_before)
        progress = None
        if request.parameters.randomness == "seeded":
            progress = step.describe(num_before, clipped, optimum, exact)
        # How many there are now stands with the answer: none may be missing later.
        counted = f"{num_before}/{_asked_of(entry)}/{len(observations)}"
        entry = replace(entry, reply=_pack_reply(vector, progress), request=counted)
        memory.write_entry(entry)
    packed, progress = _unpack_reply(entry.reply)
    return step_reply(message, packed if request.wants_upload else None, progress)


def _begin_round(
    memory: DeviceState, entry: LedgerEntry, request: Request, agreed: str, counted: str
) -> LedgerEntry:
    """Write down, before anything is evaluated, what is asked and what was observed until now."""
    # Sampled or not, a release counts for every agent; its noise is the server's.
    released = request.parameters.releases_in(request.server_round)
    entry = replace(
        entry,
        last_round=request.server_round,
        participations=entry.participations + released,
        terms=agreed,
        request=counted,
        reply=b"",
        releases=_describe_releases(request.parameters),
    )
    memory.write_entry(entry)
    return entry


def _describe_releases(parameters: DpFtsDeParameters) -> str:
    """Say what a release shows to those who see the broadcasts, with the noise that is promised."""
    z = parameters.noise_multiplier
    if not z or parameters.randomness == "seeded":
        return NOTHING_HIDDEN
    releases = parameters.describe_releases(1, float(z))
    # The client cannot see to it: the server is trusted to add the noise.
    promised = {"delta": float(parameters.target_delta), "noise_at": "server"}
    return json.dumps({**asdict(releases), **promised})


def _count_before(entry: LedgerEntry) -> int:
    """Return how many observations there were when the entry's round began."""
    return int(entry.request.partition("/")[0] or 0)


def _are_whole(observations: list[Observation], entry: LedgerEntry, dimension: int) -> bool:
    """Return whether there are at least as many as the entry knows of, of the run's space."""
    return len(observations) >= count_observations(entry) and all(
        len(each.point) == dimension
        and all(0.0 <= place <= 1.0 for place in each.point)
        and abs(each.value) <= MAX_MAGNITUDE
        for each in observations
    )


def count_observations(entry: LedgerEntry) -> int:
    """Return how many observations an agent has at least: as many as its entry knows of."""
    before, _, rest = entry.request.partition("/")
    _, _, after = rest.partition("/")
    return int(after or before or 0)


def _asked_of(entry: LedgerEntry) -> str:
    """Return the digest of the entry's request."""
    return entry.request.split("/")[1]


@dataclass
class _Step:
    """One round of one agent.

    `observations` are those in its memory, in order; what is observed is added to both.
    """

    request: Request
    memory: DeviceState
    observations: list[Observation]
    evaluate: Evaluate
    snap: Snap | None
    failed_value: float
    value_range: tuple[float, float] | None
    is_shared: bool = False

    def run(self, num_before: int) -> tuple[Floats, bool]:
        """Query what is left to query in the round; return the clipped vector, and if it was."""
        parameters = self.request.parameters
        points, values = self._history()
        if num_before < parameters.num_initial:
            # Always those of round 1: an interrupted start goes on with the points that are left.
            first = draw_initial_points(
                parameters, self.request.agent, self._streams(1).open("initial")
            )
            for point in first[len(values) :]:
                self._observe(self._snapped(point))
        else:
            query = self._choose(points[:num_before], values[:num_before])
            # Of a round that was interrupted after its query, only what kind it was is asked again.
            if query is not None and len(values) <= num_before:
                self._observe(query)
        points, values = self._history()
        try:
            vector = draw_vector(
                parameters, points, values, self._streams(self.request.server_round).open("vector")
            )
        except _NO_MODEL:
            _log.exception("no model of the observations: the vector is zero")
            vector = np.zeros(parameters.num_random_features)
        return clip_vector(parameters, vector)

    def describe(
        self,
        num_before: int,
        clipped: bool,
        optimum: float | None,
        exact: Callable[[Floats], Floats] | None,
    ) -> Progress:
        """Describe how far the agent has come, in a seeded run."""
        parameters = self.request.parameters
        points, values = self._history()
        # Of the whole round, also of what was observed before it was interrupted.
        notes = [each.note for each in self.observations[num_before:]]
        best = int(np.argmax(values))
        regrets = None
        if optimum is not None:
            regrets = optimum - (values if exact is None else exact(points))
        return Progress(
            value=float(values[-1]),
            best_value=float(values[best]),
            clipped=float(clipped),
            failures=float(notes.count("failed")),
            outside=float(notes.count("outside")),
            simple_regret=None if regrets is None else float(regrets.min()),
            cumulative_regret=(
                None if regrets is None else math.fsum(regrets[parameters.num_initial :])
            ),
            best_point=tuple(points[best].tolist()),
            points=tuple(tuple(point) for point in points[num_before:].tolist()),
            values=tuple(values[num_before:].tolist()),
            is_shared=self.is_shared,
            best_before=float(values[:num_before].max()) if num_before else None,
        )

    def _streams(self, server_round: int) -> AgentStreams:
        parameters = self.request.parameters
        randomness = Randomness(parameters.randomness, parameters.seed)
        return AgentStreams(randomness, server_round, self.request.agent)

    def _history(self) -> tuple[Floats, Floats]:
        rows = self.observations
        points = np.array([row.point for row in rows], dtype=np.float64)
        values = np.array([row.value for row in rows], dtype=np.float64)
        return points.reshape(len(rows), self.request.parameters.dimension), values

    def _snapped(self, point: Floats) -> Floats:
        return point if self.snap is None else np.asarray(self.snap(point), dtype=np.float64)

    def _choose(self, points: Floats, values: Floats) -> Floats | None:
        parameters, streams = self.request.parameters, self._streams(self.request.server_round)
        try:
            query, self.is_shared = choose_query(
                parameters, points, values, self.request.broadcast, streams, self.snap
            )
        except _NO_MODEL:
            _log.exception("no model of the observations: nothing is queried in this round")
            return None
        return query

    def _observe(self, point: Floats) -> None:
        note: Note = ""
        try:
            value = float(self.evaluate(point.copy()))
        except Exception:
            _log.exception("an evaluation failed")
            value = math.nan
        if self.value_range is not None and math.isfinite(value):
            low, high = self.value_range
            note = note if low <= value <= high else "outside"
            value = min(max(value, low), high)
        if not abs(value) <= MAX_MAGNITUDE:
            value, note = self.failed_value, "failed"
        observed = Observation(tuple(float(each) for each in point), value, note)
        self.memory.add_observation(observed)
        self.observations.append(observed)


def _pack_reply(vector: Floats, progress: Progress | None) -> bytes:
    """Return what is stored of a reply: the progress on a line, and the packed vector."""
    told = None if progress is None else write_progress(progress)
    return json.dumps(told).encode() + b"\n" + pack_vector(vector)


def _unpack_reply(stored: bytes) -> tuple[bytes, Progress | None]:
    head, _, packed = stored.partition(b"\n")
    told = json.loads(head)
    return packed, None if told is None else read_progress(told)
