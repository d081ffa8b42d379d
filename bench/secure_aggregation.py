"""One round of NISS's masks beside double-masked secure aggregation: bytes and seconds.

Bytes by formula (bench/secure_aggregation_costs.py). Seconds are CPU time of one thread, of a
client (the first, the middle and the last one are timed on all that a client does for its peers)
and of the server, whose repeated work is timed on at most 20 clients and 100 pairs and scaled.
Training, own noise, encoding and transport are left out on both sides; every key and card is new.

What the protocols do differently, besides: NISS recovers nothing after a dropout (Gaussian pairs
leave noise in the sum, which the third table counts; uniform masks repeat the round, here with
nobody dropping out again); secure aggregation gives the exact sum of those that stay. Secure
aggregation has no differential privacy of its own: its clients would add the same own noise.

    python -m bench.secure_aggregation --measure   writes bench/results/secure_aggregation.json
    python -m bench.secure_aggregation --table     prints that file, --summary the README's tables
"""

import argparse
import datetime
import json
import platform
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "secure_aggregation.json"
COHORTS, SIZES, DROPS = (10, 100, 1000), (21_840, 1_000_000), (0, 5, 30)
REGISTERED = 10_000
GAUSSIAN, UNIFORM = "NISS, Gaussian pairs", "NISS, uniform masks"
FULL, SPARSE = "double masking", "SecAgg+, passive server"
PROTOCOLS = (GAUSSIAN, UNIFORM, FULL, SPARSE)
REPEATS = {10: 15, 100: 3, 1000: 1}
"""How often a cohort is timed; the medians count."""


def compute_traffic(protocol: str, num_clients: int, size: int, dropped: int) -> dict[str, int]:
    """Return the bytes of a round; of two with NISS's uniform masks if somebody drops out."""
    from bench import secure_aggregation_costs as costs

    if protocol in (GAUSSIAN, UNIFORM):
        repeat = protocol == UNIFORM and dropped > 0
        return asdict(costs.niss_traffic(num_clients, size, dropped, repeat))
    if protocol == FULL:
        return asdict(costs.double_masking_traffic(num_clients, size, dropped))
    k, _ = costs.choose_neighbours(num_clients)
    return asdict(costs.double_masking_traffic(num_clients, size, dropped, k, active=False))


def measure_niss(num_clients: int, size: int) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the seconds of a client and the server, by protocol and percentage of dropouts."""
    from bench.masking_seconds import time_niss_client, time_sum
    from bench.secure_aggregation_costs import count_dropouts

    found = {}
    for protocol in (GAUSSIAN, UNIFORM):
        client = statistics.median(
            time_niss_client(num_clients, size, protocol == GAUSSIAN)
            for _ in range(REPEATS[num_clients])
        )
        for percent in DROPS:
            staying = num_clients - count_dropouts(num_clients, percent)
            seconds = client
            if protocol == UNIFORM and percent:
                # Once more, towards those that stayed; the first try's uploads are not summed.
                seconds *= 1 + (staying - 1) / (num_clients - 1)
            found[protocol, percent] = (seconds, time_sum(staying, size))
    return found


def measure_double_masking(
    protocol: str, num_clients: int, size: int, percent: int
) -> tuple[float, dict[str, float]]:
    """Return the seconds of a client that stays, and those of the server by what for."""
    from bench import masking_seconds as seconds
    from bench.secure_aggregation_costs import choose_neighbours, count_dropouts, threshold_of

    peers, threshold = num_clients - 1, threshold_of(num_clients)
    if protocol == SPARSE:
        peers, threshold = choose_neighbours(num_clients)
    dropped = count_dropouts(num_clients, percent)
    gone = round(dropped * peers / (num_clients - 1))
    clients, servers = [], []
    for _ in range(REPEATS[num_clients]):
        cohort = seconds.Cohort(peers, threshold, gone, active=protocol == FULL)
        clients.append(seconds.time_double_masking_client(cohort, size))
        servers.append(seconds.time_double_masking_server(cohort, num_clients, dropped, size))
    parts = {name: statistics.median(each[name] for each in servers) for name in servers[0]}
    return statistics.median(clients), parts


def measure() -> dict[str, Any]:
    from bench import masking_seconds as seconds
    from bench import secure_aggregation_costs as costs
    from fl_app.run_store import list_versions

    rows = []
    for num_clients in COHORTS:
        for size in SIZES:
            niss = measure_niss(num_clients, size)
            for percent in DROPS:
                dropped = costs.count_dropouts(num_clients, percent)
                for protocol in PROTOCOLS:
                    row: dict[str, Any] = {
                        "protocol": protocol,
                        "clients": num_clients,
                        "parameters": size,
                        "dropped": dropped,
                        "drop_percent": percent,
                        **compute_traffic(protocol, num_clients, size, dropped),
                    }
                    if protocol in (GAUSSIAN, UNIFORM):
                        client, server = niss[protocol, percent]
                    else:
                        client, parts = measure_double_masking(protocol, num_clients, size, percent)
                        server = sum(parts.values())
                        row["server_seconds_by_part"] = {k: _round(v) for k, v in parts.items()}
                    row["client_seconds"], row["server_seconds"] = _round(client), _round(server)
                    rows.append(row)
                    print(protocol, num_clients, size, percent, client, server, flush=True)
    return {
        "format_version": 1,
        "command": "python -m bench.secure_aggregation --measure",
        "seeds": "none: keys from the operating system; no figure depends on their values",
        "versions": {**list_versions(), **_list_libraries()},
        "machine": platform.machine(),
        "date": datetime.date.today().isoformat(),
        "thresholds": {n: costs.threshold_of(n) for n in COHORTS},
        "neighbours": {n: costs.choose_neighbours(n) for n in COHORTS},
        "registration_bytes": {
            "registered": REGISTERED,
            **costs.registration_bytes(REGISTERED),
        },
        "residual_variance": [
            {
                "clients": n,
                "dropped": dropped,
                "sum_variance": dict(
                    zip(("all_stay", "they_drop"), costs.residual_variance(n, dropped), strict=True)
                ),
            }
            for n in COHORTS
            for dropped in (costs.count_dropouts(n, percent) for percent in DROPS)
        ],
        "operations": {name: _round(each) for name, each in seconds.time_operations().items()},
        "sharing": [
            {
                "clients": n,
                "threshold": costs.threshold_of(n),
                "here": seconds.time_sharing(n, costs.threshold_of(n)),
                "flower": seconds.time_flower_sharing(n, costs.threshold_of(n))
                if n <= 100
                else None,
            }
            for n in COHORTS
        ],
        "rows": rows,
    }


def _round(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _list_libraries() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("cryptography", "pycryptodome")}


def format_bytes(count: float) -> str:
    """Return a size to three digits, in kB or MB (powers of ten)."""
    if count < 1e3:
        return f"{count:.0f} B"
    unit, name = (1e3, "kB") if count < 999_500 else (1e6, "MB")
    return f"{count / unit:.3g} {name}"


def format_seconds(seconds: float) -> str:
    """Return a time to three digits, in ms or s."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"


def print_table(results: dict[str, Any]) -> None:
    print_bytes(results)
    print()
    print_seconds(results)
    print()
    print_variances(results)


def print_summary(results: dict[str, Any]) -> None:
    """Print the README's tables: the largest model, nobody and most drop out; what noise is left.

    A cell has the bytes of a client beyond one model and one update, its seconds and the server's.
    """
    rows = []
    cases = _group(results)
    most = {n: max(drops for clients, _, drops in cases if clients == n) for n, _, _ in cases}
    for (num_clients, size, dropped), found in cases.items():
        if size == SIZES[-1] and dropped in (0, most[num_clients]):
            cells = [
                f"{format_bytes(row['client_up'] + row['client_down'] - 8 * size)}; "
                f"{format_seconds(row['client_seconds'])}; {format_seconds(row['server_seconds'])}"
                for row in found
            ]
            rows.append([f"{num_clients:,}", str(dropped), *cells])
    _print_rows(["clients", "drop out", *PROTOCOLS], rows)
    print()
    print_variances(results)


def _group(results: dict[str, Any]) -> dict[tuple[int, int, int], list[dict[str, Any]]]:
    """Return the rows of each case: clients, parameters, dropouts; one a protocol."""
    cases: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        case = (row["clients"], row["parameters"], row["dropped"])
        cases.setdefault(case, []).append(row)
    return cases


def _print_rows(names: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")


def print_bytes(results: dict[str, Any]) -> None:
    """Print a client's bytes in a round beyond one model down and one masked update up."""
    rows = []
    for (num_clients, size, dropped), found in _group(results).items():
        if size == SIZES[-1]:
            beyond = [
                [format_bytes(row[f"client_{way}"] - 4 * size) for way in ("up", "down")]
                for row in found
            ]
            cells = [f"{up} up, {down} down" for up, down in beyond]
            rows.append([f"{num_clients:,}", str(dropped), *cells])
    _print_rows(["clients", "drop out", *PROTOCOLS], rows)


def print_seconds(results: dict[str, Any]) -> None:
    """Print the seconds of a client, and of the server."""
    rows = []
    for (num_clients, size, dropped), found in _group(results).items():
        cells = [
            "; ".join(format_seconds(row[f"{who}_seconds"]) for who in ("client", "server"))
            for row in found
        ]
        rows.append([f"{num_clients:,}", f"{size:,}", str(dropped), *cells])
    _print_rows(["clients", "parameters", "drop out", *PROTOCOLS], rows)


def print_variances(results: dict[str, Any]) -> None:
    """Print the variance of the noise in the sum, in units of what protects each client.

    An exact sum has one unit if the own noise is set so that those that stay suffice.
    """
    rows = []
    for row in results["residual_variance"]:
        n, dropped, variance = row["clients"], row["dropped"], row["sum_variance"]
        pairs = [f"{variance[case]:.3g}" for case in ("all_stay", "they_drop")]
        rows.append([f"{n:,}", str(dropped), *pairs, "1", str(n - dropped)])
    names = ["clients", "expected to drop out", "Gaussian pairs, if all stay", "if they drop out"]
    _print_rows([*names, "exact sum", "local noise alone"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="compute, about three minutes")
    parser.add_argument("--table", action="store_true", help="print the tables of the last run")
    parser.add_argument("--summary", action="store_true", help="print the README's tables")
    given = parser.parse_args()
    if given.measure:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    if given.summary:
        print_summary(json.loads(RESULTS.read_text()))
    if given.table:
        print_table(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
