"""Who takes part in a run: the nodes say which client each of them is, before the first round."""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fl_app.client_app import NUM_PARTITIONS_KEY, PARTITION_KEY, QUERY_ACTION, STATE_KEY
from fl_app.engines.client_work import LOGS
from fl_app.errors import ConfigError, RunError
from strategies.dp_fedpaq.messages import REFUSED_BY_POLICY, UNANSWERED
from strategies.dp_fedpaq.replies import NO_ANSWER, UNVERIFIED, name_error

NODE_TIMEOUT = 120.0
NODE_POLL_SECONDS = 0.2
# Flower's simulation looks through all messages for each node: many at once take far longer.
NODES_AT_ONCE = 64
QUERY_TYPE = f"{MessageType.QUERY}.{QUERY_ACTION}"
# Beyond it nothing is taken for the number of a client, or for how many there are.
MOST_CLIENTS = 2**31
# How many of the nodes that are left out are named in the log.
_NAMED = 10
_INVALID = "no valid answer"
_OWN_LOG = "why is in the device's own log"
# What to do about an error, by its code.
_HINTS = {
    UNVERIFIED: "sign it, with fl-app sign, and set engine.signed=true; the signer must be among "
    "the device's trusted ones",
    REFUSED_BY_POLICY: _OWN_LOG,
    UNANSWERED: _OWN_LOG,
}

_log = logging.getLogger(__name__)


class Claim(NamedTuple):
    """What a node says of itself.

    Attributes
    ----------
    partition : int
        From 0.
    num_partitions : int
        Above `partition`; 0: it does not know.
    """

    partition: int
    num_partitions: int


def read_client_ids(
    grid: Grid, expected: int | None, state_folder: Path | None = None
) -> dict[int, int]:
    """Return node id -> partition number of all nodes of a simulation.

    Parameters
    ----------
    grid : Grid
        One that has ``partition_ids`` is believed; on others the nodes are asked.
    expected : int or None
        How many nodes there must be; None: as many as the nodes say there are partitions.
    state_folder : Path or None
        Where the nodes that are asked shall keep their states, if they run on this machine.

    Raises
    ------
    RunError
        If too few nodes connect or answer in time, or two hold the same partition.
    ConfigError
        If the number of nodes is not the one that the configuration names.
    """
    known: dict[int, int] | None = getattr(grid, "partition_ids", None)
    if known is not None:
        return known
    if expected is None:
        # Nodes connect one by one, so the number found at first says nothing.
        first = _wait_for_nodes(grid, 1)[:1]
        (claim,) = _ask_all(grid, first, state_folder).values()
        expected = claim.num_partitions or 1
    nodes = _wait_for_nodes(grid, expected)
    if len(nodes) != expected:
        raise ConfigError("num_clients", expected, f"the number of connected nodes, {len(nodes)}")
    claims = _ask_all(grid, nodes, state_folder)
    found = {node: claim.partition for node, claim in claims.items()}
    partitions = {claim.num_partitions for claim in claims.values()}
    if sorted(found.values()) != list(range(len(nodes))) or partitions != {len(nodes)}:
        raise RunError(
            f"{len(nodes)} nodes hold the partitions {sorted(found.values())} of "
            f"{sorted(partitions)}; each of 0 to {len(nodes) - 1} is needed once"
        )
    return found


def read_device_ids(
    grid: Grid,
    least: int | None,
    most: int | None = None,
    tell: Callable[[str], None] = _log.info,
) -> dict[int, int]:
    """Return node id -> client number of the devices that take part.

    One that refuses, does not answer, or says what cannot be is left out and logged: no device ends
    the run of the others. Of several that claim the same number, the one with the smallest node id
    is kept; of several that disagree on how many there are, those that say what most say.

    Parameters
    ----------
    grid : Grid
    least : int or None
        How many must take part; None: one.
    most : int or None
        Where a run has so many clients and no more: numbers from this one on are left out.
    tell : callable
        Called with a line whenever something has changed that the run waits for.

    Raises
    ------
    RunError
        If too few connect and answer in time.
    """
    needed = 1 if least is None else least
    deadline = time.monotonic() + NODE_TIMEOUT
    asked: list[int] = []
    said: dict[int, Claim | str] = {}
    found: dict[int, int] = {}
    left_out: dict[int, str] = {}
    told = ""
    while True:
        if (waits := _describe_wait(len(found), needed, left_out)) != told:
            tell(told := waits)
        new = sorted(set(grid.get_node_ids()) - set(asked))
        for batch in _batches(new):
            said |= _ask(grid, batch, None)
        asked += new
        claims = {node: each for node, each in said.items() if isinstance(each, Claim)}
        found, left_out = _choose(claims, least, most)
        left_out |= {node: each for node, each in said.items() if isinstance(each, str)}
        if len(found) >= needed or time.monotonic() > deadline:
            break
        # Others may still connect, in place of those that are left out.
        time.sleep(NODE_POLL_SECONDS)
    for node, why in sorted(left_out.items())[:_NAMED]:
        _log.warning("node %d is left out: %s", node, why)
    if left_out:
        _log.warning("%d of %d nodes are left out", len(left_out), len(asked))
    if len(found) < needed:
        raise RunError(
            f"{len(found)} of {len(asked)} nodes take part after {NODE_TIMEOUT:g} s; {needed} "
            f"needed, each with a number of its own{_list_reasons(left_out)}"
        )
    return found


def _describe_wait(num_found: int, needed: int, left_out: Mapping[int, str]) -> str:
    """Return what a start waits for; others may connect in place of those that are left out."""
    more = f" (others may still connect){_list_reasons(left_out)}" if left_out else ""
    return f"waiting for devices: {num_found} of {needed}{more}"


def _list_reasons(left_out: Mapping[int, str]) -> str:
    """Return how many nodes are left out for each reason, after a semicolon; nothing for none."""
    counts = Counter(left_out.values())
    return "".join(f"; {count} left out: {why}" for why, count in counts.most_common(_NAMED))


def is_remote(grid: Grid) -> bool:
    """Return whether a grid is Flower's to the nodes of a SuperLink: devices, as no simulation."""
    # Whoever has made one has imported it.
    module = sys.modules.get("flwr.superlink.grid.http_grid")
    return module is not None and isinstance(grid, module.HttpGrid)


def _choose(
    claims: Mapping[int, Claim], expected: int | None, most: int | None
) -> tuple[dict[int, int], dict[int, str]]:
    """Return the numbers of the nodes that take part, and why others do not."""
    total = _most_common_total(claims.values(), expected)
    found: dict[int, int] = {}
    left_out: dict[int, str] = {}
    for node, claim in sorted(claims.items()):
        if claim.num_partitions != total:
            left_out[node] = f"counts {claim.num_partitions} devices in all, most count {total}"
        elif most is not None and claim.partition >= most:
            left_out[node] = f"claims number {claim.partition}, the run has 0 to {most - 1}"
        elif claim.partition in found.values():
            left_out[node] = f"claims number {claim.partition}, as another of a smaller id does"
        else:
            found[node] = claim.partition
    return found, left_out


def _most_common_total(claims: Iterable[Claim], expected: int | None) -> int:
    """Return how many devices there are, as most say: rather as expected, else the smaller."""
    counts = Counter(claim.num_partitions for claim in claims if claim.num_partitions)
    if not counts:
        return 0
    return max(counts, key=lambda total: (counts[total], total == expected, -total))


def _wait_for_nodes(grid: Grid, least: int) -> list[int]:
    deadline = time.monotonic() + NODE_TIMEOUT
    while len(nodes := sorted(grid.get_node_ids())) < least:
        if time.monotonic() > deadline:
            raise RunError(f"{len(nodes)} nodes after {NODE_TIMEOUT:g} s; {least} needed")
        time.sleep(NODE_POLL_SECONDS)
    return nodes


def _batches(nodes: list[int]) -> Iterator[list[int]]:
    for begin in range(0, len(nodes), NODES_AT_ONCE):
        yield nodes[begin : begin + NODES_AT_ONCE]


def _ask_all(grid: Grid, nodes: list[int], state_folder: Path | None) -> dict[int, Claim]:
    """Return what each node says; RunError if one says nothing."""
    claims: dict[int, Claim] = {}
    for batch in _batches(nodes):
        said = _ask(grid, batch, state_folder)
        valid = {node: each for node, each in said.items() if isinstance(each, Claim)}
        claims |= valid
        if missing := len(batch) - len(valid):
            raise RunError(
                f"{missing} of {len(batch)} nodes did not say which partition they hold: they "
                f"failed to start, or took more than {NODE_TIMEOUT:g} s; see {LOGS}"
            )
    return claims


def _ask(grid: Grid, nodes: list[int], state_folder: Path | None) -> dict[int, Claim | str]:
    """Return what nodes say, or why there is nothing; the first reply counts."""
    told = ConfigRecord({STATE_KEY: str(state_folder)} if state_folder else {})
    requests = [
        Message(RecordDict({"config": told}), dst_node_id=node, message_type=QUERY_TYPE)
        for node in nodes
    ]
    said: dict[int, Claim | str] = {}
    for reply in grid.send_and_receive(requests, timeout=NODE_TIMEOUT):
        said.setdefault(reply.metadata.src_node_id, _read_claim(reply))
    return {node: said.get(node, NO_ANSWER) for node in nodes}


def _read_claim(reply: Message) -> Claim | str:
    """Return what a reply says, if it can be, and else what is wrong."""
    if reply.has_error():
        # The code alone: a reason is the device's own text.
        code = reply.error.code
        hint = _HINTS.get(code)
        return name_error(code) + (f" ({hint})" if hint else "")
    config = reply.content.get("config")
    if not isinstance(config, ConfigRecord):
        return _INVALID
    partition, total = config.get(PARTITION_KEY), config.get(NUM_PARTITIONS_KEY, 0)
    if type(partition) is not int or type(total) is not int:
        return _INVALID
    if not 0 <= partition < (total or MOST_CLIENTS) <= MOST_CLIENTS:
        return _INVALID
    return Claim(partition, total)
