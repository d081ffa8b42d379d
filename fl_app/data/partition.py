"""How records are divided among simulated clients.

Every function takes the labels of the training records, int64 of shape (n,) (or their groups), the
number of clients and a generator, and returns one sorted int64 array of record indices a client.
Every record goes to exactly one client, every client has at least one record, and the result
depends on the arguments alone. `fl_app.data.flwr_partition` adds those of Flower Datasets.

References
----------
.. [1] Li, Diao, Chen & He, "Federated Learning on Non-IID Data Silos: An Experimental Study",
   ICDE 2022 (arXiv 2102.02079): a Dirichlet draw over the clients for each label.
.. [2] McMahan, Moore, Ramage, Hampson & Aguera y Arcas, "Communication-Efficient Learning of Deep
   Networks from Decentralized Data", AISTATS 2017 (arXiv 1602.05629): shards of single labels.
.. [3] Karimireddy, Kale, Mohri, Reddi, Stich & Suresh, "SCAFFOLD: Stochastic Controlled Averaging
   for Federated Learning", ICML 2020 (arXiv 1910.06378), section 7: s% similar data.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.data.records import DataError, TooManyClientsError

Labels = NDArray[np.int64]
Groups = NDArray[Any]
Partitions = tuple[NDArray[np.int64], ...]


def partition_iid(labels: Labels, num_clients: int, rng: np.random.Generator) -> Partitions:
    """Deal shuffled records out: sizes differ by at most one.

    Raises
    ------
    DataError
        If there are more clients than records.
    """
    require_enough_records(len(labels), num_clients, 1)
    return _sorted(np.array_split(rng.permutation(len(labels)), num_clients))


def partition_by_dirichlet(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    alpha: float = 0.5,
    min_records: int = 1,
) -> Partitions:
    """Divide each label's records in proportions drawn from a symmetric Dirichlet [1]_.

    Clients left with fewer than `min_records` are then topped up, one record at a time, each a
    random record of the client that is largest at that moment. That moves at most
    num_clients * min_records records and always ends; with a small `alpha` and many clients it
    makes the partition less skewed than `alpha` alone says. (Drawing again until every client has
    enough, the usual way, may never end there.)

    Parameters
    ----------
    labels : numpy.ndarray
        int64, shape (n,).
    num_clients : int
        At least 1.
    rng : numpy.random.Generator
        Source of the partition.
    alpha : float
        Concentration, positive. Small: few labels a client; large: close to IID.
    min_records : int
        Records that each client has at least, at least 1.

    Raises
    ------
    DataError
        If num_clients * min_records exceeds n, or `alpha` cannot be drawn with.
    """
    require_enough_records(len(labels), num_clients, min_records)
    members: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        records = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        # Extreme values of alpha underflow or overflow in the gamma draws behind the Dirichlet.
        if not np.isfinite(shares).all() or abs(shares.sum() - 1) > 1e-6:
            raise DataError(
                f"data.partition.alpha: {alpha!r} is outside what can be drawn for {num_clients} "
                "clients; use a value between 1e-3 and 1e6"
            )
        ends = np.rint(np.cumsum(shares)[:-1] * len(records)).astype(np.int64)
        for client, part in enumerate(np.split(records, ends)):
            members[client].append(part)
    # Shuffled, so that a record given away is a random one and not one of the last label.
    lists = [rng.permutation(np.concatenate(parts)).tolist() for parts in members]
    _top_up(lists, min_records)
    return _sorted(np.array(records, dtype=np.int64) for records in lists)


def partition_by_label_shards(
    labels: Labels,
    num_clients: int,
    rng: np.random.Generator,
    labels_per_client: int = 2,
) -> Partitions:
    """Give each client parts of `labels_per_client` different labels, chosen at random [2]_.

    The num_clients * labels_per_client parts are spread over the labels as evenly as they can be:
    if they do not divide, randomly chosen labels are cut into one part more than the others. The
    parts of one label differ by at most one record. With MNIST, 100 clients and 2 labels each,
    this is DP-FedPaq's experiment: each digit cut in 20, about 600 records a client.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, shape (n,).
    num_clients : int
        At least 1.
    rng : numpy.random.Generator
        Source of the partition.
    labels_per_client : int
        Between 1 and the number of different labels.

    Raises
    ------
    DataError
        If a label has fewer records than the parts it must be cut in, there are fewer parts than
        labels, or clients are asked to have more labels than there are.
    """
    require_enough_records(len(labels), num_clients, 1)
    classes, counts = np.unique(labels, return_counts=True)
    if labels_per_client > len(classes):
        raise DataError(
            f"data.partition.labels_per_client: {labels_per_client}; the records have "
            f"{len(classes)} different labels"
        )
    if num_clients * labels_per_client < len(classes):
        raise DataError(
            f"num_clients: {num_clients} clients with {labels_per_client} labels each cannot hold "
            f"all {len(classes)} labels; use more clients or labels per client"
        )
    parts_per_class = _share_parts(num_clients * labels_per_client, len(classes), rng)
    if np.any(parts_per_class > counts):
        worst = int(np.argmax(parts_per_class - counts))
        raise DataError(
            f"num_clients: {num_clients} clients with {labels_per_client} labels each need "
            f"{parts_per_class[worst]} parts of label {classes[worst]}, which has "
            f"{counts[worst]} records; use fewer clients or labels per client"
        )
    chosen = _choose_classes(parts_per_class, num_clients, labels_per_client, rng)
    parts = [
        iter(np.array_split(rng.permutation(np.flatnonzero(labels == label)), num_parts))
        for label, num_parts in zip(classes, parts_per_class, strict=True)
    ]
    return _sorted(np.concatenate([next(parts[c]) for c in classes_of]) for classes_of in chosen)


def partition_by_similarity(
    labels: Labels, num_clients: int, rng: np.random.Generator, similarity: float = 0.1
) -> Partitions:
    """Deal a share of the records out at random, and cut the rest, sorted by label [3]_.

    round(similarity * n) random records are dealt out as in `partition_iid`. The others are sorted
    by label, random within a label, and cut into one run of neighbours a client. Sizes differ by
    at most one.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, shape (n,).
    num_clients : int
        At least 1.
    rng : numpy.random.Generator
        Source of the partition.
    similarity : float
        Share s of the records that is the same for everybody, in [0, 1]. 1: IID; 0: one or two
        labels a client where labels are as large as clients.

    Raises
    ------
    DataError
        If there are more clients than records.
    """
    require_enough_records(len(labels), num_clients, 1)
    shuffled = rng.permutation(len(labels))
    alike, rest = np.split(shuffled, [round(similarity * len(labels))])
    rest = rest[np.argsort(labels[rest], kind="stable")]
    # The first clients get one of the records dealt out more, the last ones one of the sorted:
    # so that nobody is left empty, and sizes are as even as they can be.
    sizes = [(len(rest) + client) // num_clients for client in range(num_clients)]
    runs = np.split(rest, np.cumsum(sizes)[:-1])
    dealt = np.array_split(alike, num_clients)
    return _sorted(np.concatenate(parts) for parts in zip(dealt, runs, strict=True))


def partition_by_group(
    groups: Groups, num_clients: int, rng: np.random.Generator, names: Sequence[str] = ()
) -> Partitions:
    """Make each group of records one client, in the order of the sorted groups.

    Parameters
    ----------
    groups : numpy.ndarray
        Integers or text, shape (n,): whose each record is (a person, a hospital).
    num_clients : int
        At least 1. With fewer than there are groups, that many are chosen, and the records of the
        others are left out.
    rng : numpy.random.Generator
        Chooses.
    names : sequence of str
        What the groups are called, for the message of the error.

    Raises
    ------
    DataError
        If there are fewer groups.
    """
    ids, of_record = np.unique(groups, return_inverse=True)
    if num_clients > len(ids):
        named = f" ({', '.join(names)})" if names else ""
        raise DataError(f"num_clients: {num_clients}; the data have {len(ids)} groups{named}")
    order = np.argsort(of_record, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(of_record))[:-1])
    chosen = np.sort(rng.permutation(len(ids))[:num_clients])
    return _sorted([members[group] for group in chosen])


def _share_parts(num_parts: int, num_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    base, extra = divmod(num_parts, num_classes)
    parts = np.full(num_classes, base, dtype=np.int64)
    parts[rng.permutation(num_classes)[:extra]] += 1
    return parts


def _choose_classes(
    parts_per_class: NDArray[np.int64],
    num_clients: int,
    labels_per_client: int,
    rng: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """Draw `labels_per_client` different classes for each client until all parts are used.

    A class with as many parts left as there are clients left must go to the next client; there
    are never more of those than labels_per_client, because the parts left sum to labels_per_client
    times the clients left. The other classes are drawn in proportion to their parts left. So no
    draw ends in a corner and none has to be repeated.
    """
    left = parts_per_class.copy()
    chosen = []
    for clients_left in range(num_clients, 0, -1):
        forced = np.flatnonzero(left == clients_left)
        free = np.where(left == clients_left, 0, left)
        num_free = labels_per_client - len(forced)
        drawn = (
            rng.choice(len(left), size=num_free, replace=False, p=free / free.sum())
            if num_free
            else forced[:0]
        )
        classes = np.concatenate([forced, drawn])
        left[classes] -= 1
        chosen.append(classes)
    return chosen


def _top_up(lists: list[list[int]], min_records: int) -> None:
    largest = [(-len(records), client) for client, records in enumerate(lists)]
    heapq.heapify(largest)
    for records in lists:
        # The mean is at least min_records, so while this client has fewer the largest has more:
        # nobody is taken below the minimum, and sizes that only grew need no update in the heap.
        while len(records) < min_records:
            giver = largest[0][1]
            records.append(lists[giver].pop())
            heapq.heapreplace(largest, (-len(lists[giver]), giver))


def require_enough_records(num_records: int, num_clients: int, min_records: int) -> None:
    """Raise DataError unless each client can have `min_records` records."""
    if num_clients < 1:
        raise DataError(f"num_clients: {num_clients}; at least 1 is needed")
    if num_clients * min_records > num_records:
        raise TooManyClientsError(num_clients, min_records, num_records)


def _sorted(parts: Iterable[NDArray[np.int64]]) -> Partitions:
    return tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in parts)
