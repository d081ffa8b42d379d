"""Say a privacy guarantee in plain words, and never more than it holds.

A guarantee is one entry of ``privacy.json``, as `fl_app.report.run_folder` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

Guarantee = Mapping[str, Any]

SEEDED_NOTICE = "seeded run: not a release"
NOTHING_SHARED = (
    "Nothing was shared: each client searched by itself (this simulation saw all of it)"
)
_BETWEEN = "; "  # stands between the reasons of one guarantee

_ADVERSARIES = {
    "server": "The server, and anyone who can read its traffic",
    "model_user": "Anyone who uses the released models",
    "server_and_colluders": "The server with false or colluding clients",
}
_SHORT_ADVERSARIES = {
    "server": "the server",
    "model_user": "model users",
    "server_and_colluders": "the server and colluders",
}
# What a search releases is broadcast to its own clients.
_SEARCH_USER = (
    "The other clients, all of them together, who see the broadcasts; and whoever else is given a "
    "broadcast, the shared function or its best point"
)
_SHORT_SEARCH_USER = "the other clients"
# Of trainings that are a search's evaluations; each agent has clients and a server of its own.
_IN_EVALUATIONS, _EVALUATIONS = "_in_evaluations", "all evaluations of an agent together"
_SEARCH_ZERO_OUT = "left out (the client's vectors are then zero)"
_UNITS = {"record": "One training record", "client": "All the data of one client"}
_RELATIONS = {
    "replace_one": "exchanged for any other",
    "add_or_remove_one": "added or removed",
    "zero_out": "left out (its update is then zero, and nothing is left but noise)",
}


class Status(Enum):
    """What may be said of a guarantee; the value is the sentence a reader sees."""

    HOLDS = "Holds"
    SEEDED = "Seeded run: not a release"
    INVALID = "Not a valid guarantee"
    NONE = "No privacy guarantee"


def judge_guarantee(guarantee: Guarantee | None) -> Status:
    """Say what may be claimed, failing closed when the entries contradict each other.

    Parameters
    ----------
    guarantee : mapping or None
        One entry of ``privacy.json``; ``None`` if there is no such entry.

    Returns
    -------
    Status
        `Status.HOLDS` only if epsilon and delta are numbers, the randomness was secret and the
        entry says that it is valid.
    """
    if guarantee is None or guarantee.get("epsilon") is None or guarantee.get("delta") is None:
        return Status.NONE
    if guarantee.get("randomness") == "seeded":
        return Status.SEEDED
    if guarantee.get("randomness") != "secret" or guarantee.get("valid") is not True:
        return Status.INVALID
    return Status.HOLDS


def is_seeded(summary: Mapping[str, Any] | None, privacy: Iterable[Guarantee] | None) -> bool:
    """Tell whether a run's noise can be computed again from its seed.

    Parameters
    ----------
    summary : mapping or None
        The content of ``summary.json``, if the run has finished.
    privacy : iterable of mapping, or None
        The guarantees of ``privacy.json``, if it is there.

    Returns
    -------
    bool
        True if either of them says that the randomness was seeded.
    """
    entries = [*([summary] if summary else []), *(privacy or [])]
    return any(entry.get("randomness") == "seeded" for entry in entries)


def shares_nothing(summary: Mapping[str, Any] | None) -> bool:
    """Tell whether the clients of a seeded search shared nothing: there is no noise to speak of."""
    get = (summary or {}).get
    is_alone = get("control") == "no_sharing" and get("num_releases") == 0
    return is_alone and get("randomness") == "seeded"


def list_shown(
    summary: Mapping[str, Any] | None, privacy: Iterable[Guarantee] | None
) -> list[Guarantee]:
    """Return the guarantees that there is something to say of; parameters as of `is_seeded`.

    Where nothing is shared those of the search itself are left out, not those of its evaluations.
    """
    is_left_out = ("model_user", "server") if shares_nothing(summary) else ()
    return [each for each in privacy or [] if each.get("adversary") not in is_left_out]


def describe_adversary(guarantee: Guarantee, of_search: bool = False) -> str:
    """Say against whom the guarantee holds; `of_search`: it is of a search, not of training."""
    name: str = guarantee["adversary"]
    if name.endswith(_IN_EVALUATIONS):
        one = {**guarantee, "adversary": name.removesuffix(_IN_EVALUATIONS)}
        return f"{describe_adversary(one)}: {_EVALUATIONS}"
    words = _ADVERSARIES.get(name, name)
    fraction = guarantee.get("colluding_fraction")
    if of_search and name == "model_user" and fraction == 1:
        return _SEARCH_USER
    if name == "server_and_colluders":
        # With none it is not the server's row: that one takes it for granted that there are none.
        return f"{words} (colluding_fraction: {100 * (fraction or 0):g} %)"
    if not fraction:
        return words
    share = "all other clients" if fraction == 1 else f"{100 * fraction:g} % of the clients"
    return f"{words}, with the help of {share}"


def name_adversary(guarantee: Guarantee, of_search: bool = False) -> str:
    """Name the adversary in a word or two, for a heading or an axis."""
    name: str = guarantee["adversary"]
    if name.endswith(_IN_EVALUATIONS):
        one = {**guarantee, "adversary": name.removesuffix(_IN_EVALUATIONS)}
        return f"{name_adversary(one)}, {_EVALUATIONS}"
    if of_search and name == "model_user":
        return _SHORT_SEARCH_USER
    return _SHORT_ADVERSARIES.get(name, name)


def describe_protection(guarantee: Guarantee, of_search: bool = False) -> str:
    """Say what is protected: the unit, and how two neighbouring data sets differ."""
    unit = guarantee.get("unit")
    relation = guarantee.get("neighboring_relation")
    if unit is None or relation is None:
        return "not stated"
    of_search = of_search and not guarantee["adversary"].endswith(_IN_EVALUATIONS)
    # The noise of a search is the server's.
    relations = _RELATIONS | ({"zero_out": _SEARCH_ZERO_OUT} if of_search else {})
    return f"{_UNITS.get(unit, unit)}, {relations.get(relation, relation)}"


def explain_failures(guarantees: Iterable[Guarantee]) -> list[str]:
    """Say why some guarantees do not hold, each reason once: what one has said, no other repeats.

    Parameters
    ----------
    guarantees : iterable of mapping
        The entries of ``privacy.json``.

    Returns
    -------
    list of str
        A text for each guarantee that adds a reason to those before it.
    """
    told: set[str] = set()
    texts = []
    for each in guarantees:
        reasons = [reason for reason in explain_failure(each).split(_BETWEEN) if reason]
        if new := [reason for reason in reasons if reason not in told]:
            texts.append(_BETWEEN.join(new))
            told.update(new)
    return texts


def explain_failure(guarantee: Guarantee | None) -> str:
    """Say why a guarantee does not hold; an empty string if it does.

    Parameters
    ----------
    guarantee : mapping or None
        One entry of ``privacy.json``; ``None`` if there is no such entry.

    Returns
    -------
    str
        The recorded reason, or what can be said without it.
    """
    status = judge_guarantee(guarantee)
    if status is Status.HOLDS:
        return ""
    recorded = (guarantee or {}).get("why_not")
    if recorded:
        return str(recorded)
    if status is Status.SEEDED:
        return "Whoever knows the seed can compute the noise again and subtract it."
    return "The run recorded no reason."
