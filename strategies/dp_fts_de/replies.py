"""The replies of a round: vectors by agent, and what agents say of themselves in experiments."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message

from strategies.dp_fedpaq.messages import MessageError, Reply
from strategies.dp_fedpaq.replies import CollectedReplies, collect_replies
from strategies.dp_fts_de.algorithm import Floats
from strategies.dp_fts_de.messages import parse_reply, unpack_vector
from strategies.dp_fts_de.parameters import DpFtsDeParameters
from strategies.dp_fts_de.progress import Progress

OWN_METRICS = (
    *("best_value_mean", "best_value_worst", "simple_regret_mean", "simple_regret_worst"),
    *("cumulative_regret_mean", "cumulative_regret_worst", "clipped_fraction"),
    *("num_uploaded", "num_releases", "signal_to_noise", "sharing_gain"),
)


@dataclass
class StepReplies:
    """What came back in a round.

    Attributes
    ----------
    counts : CollectedReplies
        Bytes, errors and what was dropped; `num_valid` are the agents that did their step.
    vectors : dict of int to ndarray of float64, shape (M,)
        Of each agent that was asked for one, as sent: finite, not clipped again yet.
    progress : dict of int to Progress
        Of each agent that reports it.
    """

    counts: CollectedReplies
    vectors: dict[int, Floats] = field(default_factory=dict)
    progress: dict[int, Progress] = field(default_factory=dict)


def sort_replies(
    group: str,
    cohort: Mapping[int, int],
    uploaders: Iterable[int],
    replies: Iterable[Message],
    parameters: DpFtsDeParameters,
) -> StepReplies:
    """Sort the replies to a round's requests.

    Parameters
    ----------
    group : str
        The group id of the requests; replies to another are dropped.
    cohort : mapping of int to int
        Node id to agent's number, of those who were asked.
    uploaders : iterable of int
        Numbers of those who were asked for a vector.
    replies : iterable of Message
        In any order.
    parameters : DpFtsDeParameters
        What agents say of themselves in a secret run is not believed: none may.

    Returns
    -------
    StepReplies
        Vectors in the order of the agents' numbers.
    """
    asked = set(uploaders)
    vectors: dict[int, Floats] = {}
    progress: dict[int, Progress] = {}

    def parse(message: Message) -> Reply:
        agent = cohort[message.metadata.src_node_id]
        upload, told = parse_reply(message)
        if agent in asked:
            if upload is None:
                raise MessageError("reply without an upload")
            vector = unpack_vector(upload, parameters.num_random_features)
            if not np.isfinite(vector).all():
                raise MessageError("upload with a number that is not finite")
            vectors[agent] = vector
        elif upload is not None:
            raise MessageError("upload that was not asked for")
        if told is not None and parameters.randomness == "seeded" and told.fits(parameters):
            progress[agent] = told
        return Reply(upload or b"")

    counts = collect_replies(group, cohort, replies, parse)
    counts.num_valid = len(counts.uploads)
    counts.local_failures = sum(told.failures > 0.0 for told in progress.values())
    return StepReplies(counts, dict(sorted(vectors.items())), progress)


def summarize(progress: Iterable[Progress]) -> dict[str, float | None]:
    """Return mean and worst agent of best values and regrets, clipped fraction and sharing gain.

    The sharing gain is the mean, over the agents that queried the broadcast in this round, of what
    they saw there minus the best that they had seen before. None where no agent reports it, as in
    secret runs.
    """
    told = list(progress)
    found: dict[str, float | None] = dict.fromkeys(OWN_METRICS)
    best = [each.best_value for each in told]
    simple = [each.simple_regret for each in told if each.simple_regret is not None]
    total = [each.cumulative_regret for each in told if each.cumulative_regret is not None]
    rows = (("best_value", best, min), ("simple_regret", simple, max))
    for name, values, worst in (*rows, ("cumulative_regret", total, max)):
        if values:
            found[f"{name}_mean"] = math.fsum(values) / len(values)
            found[f"{name}_worst"] = worst(values)
    if told:
        found["clipped_fraction"] = math.fsum(each.clipped for each in told) / len(told)
    gains = [
        each.value - each.best_before
        for each in told
        if each.is_shared and each.best_before is not None
    ]
    if gains:
        found["sharing_gain"] = math.fsum(gains) / len(gains)
    return found
