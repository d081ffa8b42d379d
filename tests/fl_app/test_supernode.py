"""A device's start: what is checked before it, how long it asks to be let in, and its end."""

import errno
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supernode.fleet_http_client import FleetHttpClient

from fl_app import supernode
from fl_app.device_policy import STATE_KEY
from fl_app.engines import supernode_internals
from fl_app.engines.supernode_internals import (
    ASK_SECONDS,
    LET_IN_SECONDS,
    PatientActivation,
    activate_patiently,
    read_node_config,
)
from fl_app.errors import ConfigError, RunError
from fl_app.supernode import check_start, join_words

SUPERNODE = """
    import sys, threading
    from types import SimpleNamespace
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from fl_app import supernode, warm_worker

    def loop():
        threading.Thread(target=threading.Event().wait).start()
        print("loop", sys.argv[0], flush=True)
        if {connected}:
            FleetHttpClient("http://nowhere").ActivateNode(None)
        {end}

    FleetHttpClient.ActivateNode = lambda self, request: SimpleNamespace(node_id=7)
    warm_worker.find_command = lambda name: {{"flower-supernode": loop}}[name]
    supernode.run_supernode()
"""
POLICY = ("partition-id=0", "num-partitions=2", f"{STATE_KEY}=/state")


@pytest.mark.parametrize(
    ("end", "told"), [("return", ""), ("raise ValueError('broken')", "ValueError: broken")]
)
@pytest.mark.parametrize("connected", [True, False])
def test_a_loop_that_ends_ends_the_process(end: str, told: str, connected: bool) -> None:
    """Starting again helps if there was a connection only."""
    code = textwrap.dedent(SUPERNODE.format(end=end, connected=connected))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert told in done.stderr
    assert ("has ended: start the SuperNode again" in done.stderr) == connected
    assert done.stdout == "loop flower-supernode\n"


def test_words_become_flower_s_option() -> None:
    assert join_words(["--port", "1", "--", *POLICY, "data-path=/my data"]) == [
        *("--port", "1", "--node-config"),
        'partition-id=0 num-partitions=2 state-dir="/state" data-path="/my data"',
    ]
    own = ["--node-config", "a=1 b='2'", "--port", "1"]
    assert join_words(own) == own
    for given, kept in (("", "/s"), ("state-dir=/other", "/other")):
        *rest, config = join_words(["--port", "1", "--state-dir", "/s", "--", "a=1", given])
        assert rest == ["--port", "1", "--node-config"]
        assert read_node_config(config) == {"state-dir": kept, "a": 1}
    with pytest.raises(ConfigError, match="--node-config: 'a=1'; allowed: nothing beside"):
        join_words(["--node-config", "a=1", "--", *POLICY])


def start(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Start a device whose SuperNode says what it was started with, and ends."""
    code = textwrap.dedent("""
        import json, sys
        from fl_app import supernode, warm_worker
        supernode.start_worker = lambda: print("worker", flush=True)
        found = warm_worker.find_command
        warm_worker.find_command = lambda name: lambda: print(json.dumps(sys.argv), flush=True)
        supernode.main()
    """)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
    )


def test_a_good_policy_starts_the_supernode(tmp_path: Path) -> None:
    done = start("--superlink", "127.0.0.1:1", "--", *POLICY, "max-epsilon=4", folder=tmp_path)
    assert done.stderr == ""
    worker, words = done.stdout.splitlines()
    assert worker == "worker"
    config = 'partition-id=0 num-partitions=2 state-dir="/state" max-epsilon=4'
    expected = ["flower-supernode", "--superlink", "127.0.0.1:1", "--node-config", config]
    assert json.loads(words) == expected


def test_a_policy_that_cannot_be_read_starts_nothing(tmp_path: Path) -> None:
    done = start("--", *POLICY, "max-epsilno=4", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("fl-app: the device's node configuration: max-epsilno: unknown key; did")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--", *POLICY, "max-epsilon=-4"], "max-epsilon: -4; allowed: a number > 0"),
        (["--", *POLICY, "identity-key=/nowhere"], "identity-key: '/nowhere'; allowed: "),
        (["--node-config", "partition-id=0"], "num-partitions: null; allowed: "),
        (["--node-config", "unit=a b"], "--node-config: 'unit=a b'; allowed: what Flower reads: "),
        (["--node-config", "gone.toml"], "--node-config: 'gone.toml'; allowed: what Flower reads:"),
        (["--", "max-epsilon"], "node configuration: 'max-epsilon'; allowed: KEY=VALUE"),
        ([], "num-partitions: null; allowed: "),
    ],
)
def test_what_is_wrong_is_named(
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["supernode", *words])
    with pytest.raises(SystemExit) as ended:
        supernode.main()
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("fl-app: ")
    assert told in line


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_named(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernode, "_check_policy", lambda _: None)
    try:
        taken = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError) as refused:
            check_start(["--host", host, "--port", str(port)])
    assert str(refused.value) == f"port {port} of {host}: {os.strerror(errno.EADDRINUSE)}"
    check_start(["--host", host, "--port", str(port)])


class Clock:
    """A time that passes only in sleep."""

    now = 50.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Refusal(Exception):  # noqa: N818 - as httpx's
    """An answer of the SuperLink that is an error."""

    def __init__(self, status: int, code: int = 0) -> None:
        text = json.dumps({"code": code, "detail": "Failed to activate SuperNode."})
        self.response = SimpleNamespace(status_code=status, text=text)


REFUSED, UNKNOWN, NO_SUCH_RUN = Refusal(412, 2004), Refusal(401), Refusal(404, 2008)


class SuperLink:
    """Refuses to activate for a while, and knows one node by its key."""

    def __init__(self, refusals: list[Exception], known: int = 7) -> None:
        self.refusals, self.known, self.asked = refusals, known, 0

    def activate(self, client: Any, request: Any) -> Any:
        assert (client, request) == (self, "request")
        self.asked += 1
        if self.refusals:
            raise self.refusals.pop(0)
        return SimpleNamespace(node_id=self.known)

    def GetRun(self, request: Any) -> None:  # noqa: N802 - Flower's name
        assert request.run_id == 0
        raise NO_SUCH_RUN if request.node.node_id == self.known else UNKNOWN


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(supernode_internals, "time", clock)
    return clock


def let_in(link: SuperLink, memory: Path | None) -> PatientActivation:
    patient = PatientActivation(link.activate, memory)
    assert not patient.happened
    patient(link, "request")
    return patient


def test_a_device_that_still_counts_as_connected_waits(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = tmp_path / "key.node"
    assert let_in(SuperLink([]), memory).happened
    assert capsys.readouterr().err == ""
    link = SuperLink([REFUSED] * 30)
    assert let_in(link, memory).happened
    assert (link.asked, clock.now) == (31, 50.0 + 30 * ASK_SECONDS)
    (line,) = capsys.readouterr().err.splitlines()
    assert "asking again for 120 s" in line
    link = SuperLink([REFUSED] * 1000)
    begin = clock.now
    with pytest.raises(Refusal):
        let_in(link, memory)
    assert LET_IN_SECONDS <= clock.now - begin <= LET_IN_SECONDS + ASK_SECONDS


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (REFUSED, None),  # never connected: not registered
        (REFUSED, "8"),  # the key is another node's, or nobody's by now
        (REFUSED, "none"),
        (Refusal(400, 2003), "7"),
        (UNKNOWN, "7"),
        (Refusal(412), "7"),
        (ConnectionError("certificate verify failed"), "7"),
    ],
)
def test_every_other_refusal_is_final(
    tmp_path: Path, clock: Clock, error: Exception, number: str | None
) -> None:
    memory = tmp_path / "key.node"
    if number is not None:
        memory.write_text(number)
    link = SuperLink([error])
    with pytest.raises(type(error)):
        let_in(link, memory)
    assert (link.asked, clock.now) == (1, 50.0)


def test_without_a_key_nothing_is_kept(clock: Clock) -> None:
    assert let_in(SuperLink([]), None).happened
    with pytest.raises(Refusal):
        let_in(SuperLink([REFUSED]), None)


def test_a_memory_that_cannot_be_written_keeps_nobody_out(tmp_path: Path) -> None:
    assert let_in(SuperLink([]), tmp_path / "missing" / "key.node").happened


def test_it_is_flower_s_client_that_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FleetHttpClient, "ActivateNode", lambda *_: SimpleNamespace(node_id=7))
    patient = activate_patiently(tmp_path / "key.node")
    FleetHttpClient("http://nowhere").ActivateNode("request")  # type: ignore[arg-type]
    assert patient.happened
    assert (tmp_path / "key.node").read_text() == "7\n"
