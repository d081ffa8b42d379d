"""What the ledger of a run, or of a device, shows."""

import json

import pytest

from fl_app.device_state import FolderState, create_state, list_best
from strategies.device_state import Observation
from tests.fl_app.ended import assert_refused
from tests.fl_app.failing_objective import mixed

pytestmark = pytest.mark.usefixtures("no_report")


def test_where_devices_keep_theirs_is_said(fl_app, tmp_path):
    create_state(tmp_path / "run" / "checkpoint")
    shown = fl_app("ledger", "run")
    assert (shown.code, shown.output.count("--state-dir DIR")) == (0, 1)


def test_the_ledger_is_shown(fl_app, begun, tmp_path):
    shown = fl_app("ledger", "run")
    assert (shown.code, shown.errors) == (0, "")
    rows = [line.split() for line in shown.output.splitlines() if "simulated" in line]
    # Seeded: no bound.
    assert rows == [["simulated", str(n), "dp_fedpaq", "2", "2", "∞", "0"] for n in range(4)]
    # As a device's: one row a run and client, and what it amounts to (seeded: no bound).
    spent = fl_app("ledger", "--state-dir", "run/checkpoint")
    assert (spent.code, spent.errors) == (0, "")
    rows = [line.split() for line in spent.output.splitlines() if "simulated" in line]
    assert [(row[1], row[-4], row[-2]) for row in rows] == [(str(n), "2", "∞") for n in range(4)]
    # Clients of a simulation are not one device, whose runs add up.
    assert "all runs" not in spent.output
    assert "nothing adds up over them" in " ".join(spent.output.split())


def test_an_owner_reads_the_best_points_of_its_own_searches(fl_app, tmp_path):
    folder = tmp_path / "state"
    for client, observations in ((0, [(0.25, -1.0), (0.5, 2.5), (0.75, 2.5)]), (3, [(1.0, -7.0)])):
        state = FolderState(folder, "autumn", client)
        for coordinate, value in observations:
            state.add_observation(Observation((coordinate, 0.125), value))
    shown = fl_app("ledger", "--state-dir", "state", "--best")
    assert (shown.code, shown.errors) == (0, "")
    rows = [line.split() for line in shown.output.splitlines() if "autumn" in line]
    assert rows == [
        ["autumn", "0", "3", "2.5", "0.5", "0.125"],
        ["autumn", "3", "1", "-7", "1", "0.125"],
    ]
    # What was spent may be shown to others: no value is in it.
    spent = fl_app("ledger", "--state-dir", "state")
    assert (spent.code, "2.5" in spent.output) == (0, False)
    refused = fl_app("ledger", "--state-dir", "state", "--best", "max-epsilon=3")
    assert_refused(refused, 2, "ledger: '--best'; allowed: max-epsilon=...")


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_what_each_client_has_spent_is_shown(fl_app, tmp_path, relation):
    """In the relation of the run, in which its own epsilon is."""
    words = ("num_rounds=2", "num_clients=2", "strategy.batch_size=4", "randomness=secret")
    if relation == "add_or_remove_one":
        words += (f"strategy.neighboring_relation={relation}", "strategy.sampling=poisson")
        words += ("strategy.sample_rate=0.1",)
    assert fl_app("run", *words, "hydra.run.dir=run").code == 0
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    shown = fl_app("ledger", "run")
    found = [line.split()[-2:] for line in shown.output.splitlines() if "simulated" in line]
    # Both took part in both rounds, for which the run has planned; rare draws are counted apart.
    assert [delta for _, delta in found] == ["1e-5"] * 2
    for epsilon, _ in found:
        assert rows[-1]["epsilon"] <= float(epsilon) <= rows[-1]["epsilon"] + 0.02


SPACE = (
    "objective.search_space=[{name: x, kind: log_float, low: 1e-3, high: 1}, "
    "{name: n, kind: integer, low: 1, high: 4}, {name: c, kind: choice, values: [a, b]}]"
)
SEARCH = (
    *("strategy=dp_fts_de", "objective=user", "num_rounds=3", "objective.num_agents=3"),
    *("objective.path=tests.fl_app.failing_objective:mixed", SPACE, "strategy.num_initial=3"),
)


@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_the_best_points_of_a_simulated_search_are_values_of_its_axes(fl_app, tmp_path, randomness):
    ended = fl_app("run", *SEARCH, f"randomness={randomness}", "hydra.run.dir=run")
    assert ended.code == 0, ended.errors
    shown = fl_app("ledger", "run", "--best")
    assert (shown.code, shown.errors) == (0, "")
    header = next(line.split() for line in shown.output.splitlines() if "Client" in line)
    assert header == ["Run", "Client", "Evaluations", "Best", "value", "x", "n", "c"]
    rows = [line.split() for line in shown.output.splitlines() if "simulated" in line]
    assert [row[:3] for row in rows] == [["simulated", str(n), "5"] for n in range(3)]
    for _, client, _, value, x, n, c in rows:
        point = {"x": float(x), "n": int(n), "c": c}
        assert float(value) == pytest.approx(mixed(point, int(client)), rel=1e-4)
    # Best of what is kept, which is a secret of each client.
    best = list_best(tmp_path / "run" / "checkpoint")
    assert [row[3] for row in rows] == [f"{each.best.value:.6g}" for each in best]


def test_where_nothing_succeeded_nothing_is_best(fl_app):
    words = [each.replace(":mixed", ":raises") for each in SEARCH]
    assert fl_app("run", *words, "hydra.run.dir=run").code == 0
    shown = fl_app("ledger", "run", "--best").output
    rows = [line.split() for line in shown.splitlines() if "simulated" in line]
    assert rows[1] == ["simulated", "1", "5", "–", "–", "–", "–"]
    assert all("–" not in row for row in (rows[0], rows[2]))


def test_a_run_that_trains_has_no_best_points(fl_app, begun):
    assert_refused(fl_app("ledger", "run", "--best"), 2, "ledger: 'run'; allowed: the folder of a")
    (begun / "config.yaml").unlink()
    line = assert_refused(fl_app("ledger", "run", "--best"), 2, "ledger: 'run'; allowed: a run's")
    assert "config.yaml (No such file or directory)" in line


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--best"], "ledger: '--best'; allowed: RUN, a run's folder, RUN --best, or"),
        (["a", "--best", "b"], "ledger: 'a --best b'; allowed: RUN"),
        (["nowhere", "--best"], "ledger: 'nowhere'; allowed: a folder with nowhere/checkpoint"),
        ([], "ledger: ''; allowed: RUN"),
        (["a", "b"], "ledger: 'a b'; allowed: RUN"),
        (["--state-dir"], "ledger: '--state-dir'; allowed: RUN"),
        (["nowhere"], "ledger: 'nowhere'; allowed: a folder with nowhere/checkpoint/devices"),
        (["--state-dir", "x"], "ledger: 'x'; allowed: a folder with x/devices.sqlite"),
    ],
)
def test_a_ledger_that_is_not_there(fl_app, words, start):
    assert_refused(fl_app("ledger", *words), 2, start)
