"""Charges of a device's ledger, for the tests of what they add up to."""

from dataclasses import replace

from fl_app.device_state import FolderState
from strategies.device_state import LedgerEntry

ROW = (
    '{"noise_multiplier": 3.0, "num_releases": 2, "unit": "record", '
    '"neighboring_relation": "replace_one", "sampling": "fixed", "sample_rate": 0.25, '
    '"delta": 1e-05}'
)
HALF = ROW.replace("0.25", "0.5")


def charge(state: FolderState, rounds: int, text: str = ROW, method: str = "dp_fedpaq") -> None:
    for server_round in range(1, rounds + 1):
        entry = LedgerEntry(method, server_round, server_round, releases=text)
        state.write_entry(entry)
        state.write_entry(replace(entry, reply=b"upload"))
