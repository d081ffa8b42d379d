"""What the ledger of a run, or of a device, shows."""

import pytest

from fl_app.device_state import FolderState, create_state
from strategies.device_state import Observation
from tests.fl_app.ended import assert_refused

pytestmark = pytest.mark.usefixtures("no_report")


def test_where_devices_keep_theirs_is_said(fl_app, tmp_path):
    create_state(tmp_path / "run" / "checkpoint")
    shown = fl_app("ledger", "run")
    assert (shown.code, shown.output.count("--state-dir DIR")) == (0, 1)


def test_the_ledger_is_shown(fl_app, begun, tmp_path):
    shown = fl_app("ledger", "run")
    assert (shown.code, shown.errors) == (0, "")
    rows = [line.split() for line in shown.output.splitlines() if "simulated" in line]
    assert rows == [["simulated", str(n), "dp_fedpaq", "2", "2"] for n in range(4)]
    # As a device's: one row a run and client, and what it amounts to (seeded: no bound).
    spent = fl_app("ledger", "--state-dir", "run/checkpoint")
    assert (spent.code, spent.errors) == (0, "")
    rows = [line.split() for line in spent.output.splitlines() if "simulated" in line]
    assert [(row[1], row[-4], row[-2]) for row in rows] == [(str(n), "2", "∞") for n in range(4)]


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


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([], "ledger: ''; allowed: RUN"),
        (["a", "b"], "ledger: 'a b'; allowed: RUN"),
        (["--state-dir"], "ledger: '--state-dir'; allowed: RUN"),
        (["nowhere"], "ledger: 'nowhere'; allowed: a folder with nowhere/checkpoint/devices"),
        (["--state-dir", "x"], "ledger: 'x'; allowed: a folder with x/devices.sqlite"),
    ],
)
def test_a_ledger_that_is_not_there(fl_app, words, start):
    assert_refused(fl_app("ledger", *words), 2, start)
