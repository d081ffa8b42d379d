"""Double masking as it is timed is the protocol; the printed tables are what was measured."""

import json
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench import secure_aggregation as bench
from bench.double_masking import Answer, MaskingClient, Words, unmask_sum
from bench.masking_seconds import Cohort, time_double_masking_client, time_double_masking_server
from bench.secure_aggregation_costs import SEALED_SHARES, SIGNATURE, residual_variance

NUMBERS, THRESHOLD, SIZE = range(6), 4, 50


class Round:
    """Rounds 0 to 2 of six clients."""

    def __init__(self) -> None:
        signing = [Ed25519PrivateKey.generate() for _ in NUMBERS]
        self.identities = {i: signing[i].public_key().public_bytes_raw() for i in NUMBERS}
        self.clients = [MaskingClient(i, signing[i], THRESHOLD) for i in NUMBERS]
        self.advertised = {i: client.advertise() for i, client in enumerate(self.clients)}
        self.sealed: list[dict[int, bytes]] = []
        for own, client in enumerate(self.clients):
            others = {i: each for i, each in self.advertised.items() if i != own}
            client.meet(others, self.identities)
            self.sealed.append(client.seal())
        rng = np.random.default_rng(0)
        self.updates = rng.integers(0, 2**32, (len(NUMBERS), SIZE), dtype=np.uint32)
        self.uploads = {
            own: client.mask(
                self.updates[own], {i: self.sealed[i][own] for i in NUMBERS if i != own}
            )
            for own, client in enumerate(self.clients)
        }

    def answer(self, uploaded: frozenset[int]) -> dict[int, Answer]:
        signed = {i: self.clients[i].confirm(uploaded) for i in uploaded}
        return {
            own: self.clients[own].unmask({i: each for i, each in signed.items() if i != own})
            for own in uploaded
        }


def total(vectors: Any) -> Words:
    return np.sum(list(vectors), axis=0, dtype=np.uint32)


@pytest.mark.parametrize("dropped", [set(), {0}, {2, 5}])
def test_the_sum_of_those_that_stayed_is_exact(dropped: set[int]) -> None:
    cohort = Round()
    staying = frozenset(NUMBERS) - dropped
    uploads = {i: cohort.uploads[i] for i in staying}
    found = unmask_sum(uploads, cohort.answer(staying), cohort.advertised, THRESHOLD)
    expected = total(cohort.updates[i] for i in staying)
    np.testing.assert_array_equal(found, expected)
    # The twin: without the shares the sum stays hidden, also when all pair masks cancel.
    assert np.mean(total(uploads.values()) == expected) < 0.5


def test_too_few_that_stay_are_refused() -> None:
    cohort = Round()
    with pytest.raises(ValueError, match="too few uploads"):
        cohort.answer(frozenset({0, 1, 2}))


def test_a_server_that_tells_two_stories_gets_no_shares() -> None:
    cohort = Round()
    one, other = frozenset({0, 1, 2, 3, 4}), frozenset({0, 1, 2, 3, 4, 5})
    signed = {i: cohort.clients[i].confirm(one if i < 3 else other) for i in one}
    with pytest.raises(InvalidSignature):
        cohort.clients[0].unmask({i: each for i, each in signed.items() if i != 0})


def test_swapped_keys_are_noticed() -> None:
    cohort = Round()
    peers = {1: cohort.advertised[2]}
    with pytest.raises(InvalidSignature):
        cohort.clients[0].meet(peers, cohort.identities)


def test_a_client_never_gives_both_shares_of_one() -> None:
    for answer in Round().answer(frozenset({0, 1, 2, 3, 4})).values():
        assert answer.seeds.keys() == {0, 1, 2, 3, 4}
        assert answer.keys.keys() == {5}


def test_messages_have_the_sizes_that_are_counted() -> None:
    cohort = Round()
    assert {len(data) for sealed in cohort.sealed for data in sealed.values()} == {SEALED_SHARES}
    advertised = cohort.advertised[0]
    assert len(advertised.sealing) == len(advertised.masking) == 32
    assert len(advertised.signature) == SIGNATURE
    assert cohort.uploads[0].nbytes == 4 * SIZE


@pytest.mark.parametrize("active", [True, False])
def test_the_timed_cohort_goes_through_all_rounds(active: bool) -> None:
    cohort = Cohort(num_peers=5, threshold=3, dropped=1, active=active)
    assert time_double_masking_client(cohort, 10) > 0
    parts = time_double_masking_server(cohort, num_clients=6, dropped=1, size=10)
    assert parts.keys() == {"interpolation", "self masks", "dropouts' masks", "sum"}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(bench.RESULTS.read_text())
    return read


def test_every_case_was_measured_once(results: dict[str, Any]) -> None:
    cases = [
        (r["protocol"], r["clients"], r["parameters"], r["drop_percent"]) for r in results["rows"]
    ]
    expected = {
        (protocol, clients, size, percent)
        for protocol in bench.PROTOCOLS
        for clients in bench.COHORTS
        for size in bench.SIZES
        for percent in bench.DROPS
    }
    assert len(cases) == len(expected)
    assert set(cases) == expected


def test_the_committed_bytes_are_those_of_the_formulas(results: dict[str, Any]) -> None:
    for row in results["rows"]:
        case = (row["protocol"], row["clients"], row["parameters"], row["dropped"])
        assert bench.compute_traffic(*case).items() <= row.items()
    for row in results["residual_variance"]:
        found = residual_variance(row["clients"], row["dropped"])
        assert tuple(row["sum_variance"].values()) == found


def test_the_tables_show_each_figure_of_the_results(
    results: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.print_table(results)
    tables = [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for table in capsys.readouterr().out.split("\n\n")
    ]
    in_bytes, in_seconds, variances = tables
    size = bench.SIZES[-1]
    for row in results["rows"]:
        column = bench.PROTOCOLS.index(row["protocol"])
        key = [f"{row['clients']:,}", f"{row['parameters']:,}", str(row["dropped"])]
        (shown,) = [cells[3 + column] for cells in in_seconds if cells[:3] == key]
        times = (row["client_seconds"], row["server_seconds"])
        assert shown == "; ".join(map(bench.format_seconds, times))
        if row["parameters"] == size:
            (shown,) = [cells[2 + column] for cells in in_bytes if cells[:2] == [key[0], key[2]]]
            up, down = (row[name] - 4 * size for name in ("client_up", "client_down"))
            assert shown == f"{bench.format_bytes(up)} up, {bench.format_bytes(down)} down"
    for row in results["residual_variance"]:
        n, dropped, found = row["clients"], row["dropped"], row["sum_variance"]
        shown = [f"{found['all_stay']:.3g}", f"{found['they_drop']:.3g}"]
        assert [f"{n:,}", str(dropped), *shown, "1", str(n - dropped)] in variances


SIZES = {16: "16 B", 999: "999 B", 1368: "1.37 kB", 999_499: "999 kB", 1_519_848: "1.52 MB"}
TIMES = {0.00123: "1.23 ms", 0.0996: "99.6 ms", 0.9996: "1 s", 12.34: "12.3 s", 1234.5: "1234 s"}


@pytest.mark.parametrize("count", SIZES)
def test_sizes_are_shown_to_three_digits(count: int) -> None:
    assert bench.format_bytes(count) == SIZES[count]


@pytest.mark.parametrize("seconds", TIMES)
def test_times_are_shown_to_three_digits(seconds: float) -> None:
    assert bench.format_seconds(seconds) == TIMES[seconds]
