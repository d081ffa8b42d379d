"""What a client keeps in its node's context."""

from flwr.app import Context, RecordDict

from strategies.device_state import ContextState, LedgerEntry, Observation


def context() -> Context:
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def test_an_entry_is_fresh_then_what_was_written() -> None:
    node = context()
    assert ContextState(node).read_entry("a") == LedgerEntry("a")
    entry = LedgerEntry("a", 3, 2, "terms", "request", b"\x00\xff", "{}")
    ContextState(node).write_entry(entry)
    assert ContextState(node).read_entry("a") == entry
    assert ContextState(node).read_entry("b") == LedgerEntry("b")
    assert ContextState(context()).read_entry("a") == LedgerEntry("a")


def test_keys_are_kept_and_forgotten() -> None:
    node = context()
    assert ContextState(node).read_key("pair") is None
    ContextState(node).delete_key("pair")
    ContextState(node).write_key("pair", b"\x00\x01")
    assert ContextState(node).read_key("pair") == b"\x00\x01"
    ContextState(node).delete_key("pair")
    assert ContextState(node).read_key("pair") is None


def test_observations_keep_their_order() -> None:
    node = context()
    assert ContextState(node).read_observations() == []
    added = [Observation((float(i), -0.5), 2.0 * i) for i in range(12)]
    for each in added:
        ContextState(node).add_observation(each)
    assert ContextState(node).read_observations() == added
