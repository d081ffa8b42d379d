"""The simulation engine's own part, against stand-ins for Flower's commands."""

import dataclasses
import filecmp
import json
import os
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.config import compose_settings
from fl_app.data import DataSettings
from fl_app.engines import flower, guardian, superlink
from fl_app.engines.bundle import write_bundle
from fl_app.engines.flower import describe_resources, run_simulation
from fl_app.engines.guardian import RunProcesses
from fl_app.engines.superlink import find_command, own_superlink
from fl_app.errors import RunError
from fl_app.settings import RunSettings

REPOSITORY = Path(__file__).resolve().parents[2]

# Answers /health like a SuperLink, and leaves a child in a session of its own, as Ray does.
SUPERLINK = """
import http.server, os, subprocess, sys
print("SuperLink", sys.argv[1:], flush=True)
sleep = [sys.executable, "-I", "-c", "import time; time.sleep(60)"]
subprocess.Popen(sleep, start_new_session=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

# Reads the run's configuration as Flower would, then does what the test says.
FLWR = """
import json, os, pathlib, sys, time, tomllib
config = tomllib.loads(pathlib.Path(sys.argv[sys.argv.index("--run-config") + 1]).read_text())
def tell(failure):
    file = pathlib.Path(config["outcome-file"])
    file.with_name("t").write_text(json.dumps({"failure": failure}))
    os.replace(file.with_name("t"), file)
print("flwr", sys.argv[1:], flush=True)
"""

Install = Callable[..., Path]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Install stand-ins for Flower's commands; return the folder for temporary files."""
    scripts, temporary = tmp_path / "bin", tmp_path / "t"
    scripts.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(superlink.tempfile, "tempdir", None)

    def write(flwr: str = "", superlink_program: str = SUPERLINK) -> Path:
        for name, program in (("flwr", FLWR + flwr), ("flower-superlink", superlink_program)):
            file = scripts / name
            file.write_text(f"#!{sys.executable}\n{program}")
            file.chmod(0o755)
        monkeypatch.setattr(superlink, "_find_scripts", lambda folder: scripts)
        return temporary

    return write


def settings(**changes: object) -> RunSettings:
    return dataclasses.replace(compose_settings(["engine=simulation"]), **changes)


def assert_nothing_is_left(temporary: Path) -> None:
    assert list(temporary.iterdir()) == []
    left = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(temporary) in (entry / "environ").read_text():
                left.append((entry / "cmdline").read_text())
        except OSError:
            continue
    assert [each for each in left if "sleep(60)" in each or "bin/fl" in each] == []


def test_a_completed_run_is_not_waited_for_any_longer(install: Install, tmp_path: Path) -> None:
    temporary = install("tell(None); time.sleep(60)")
    begin = time.monotonic()
    run_simulation(settings(), tmp_path / "run")
    assert time.monotonic() - begin < 20
    assert_nothing_is_left(temporary)


@pytest.mark.parametrize(
    ("randomness", "file"), [("seeded", "run.log"), ("secret", "checkpoint/clients.log")]
)
def test_a_failed_run_gives_its_reason_and_its_log(
    install: Install, tmp_path: Path, randomness: str, file: str
) -> None:
    """Flower's log holds what the clients logged."""
    temporary = install("tell('why it failed'); print('Flower says more')")
    with pytest.raises(RunError, match=r"^why it failed$"):
        run_simulation(settings(randomness=randomness), tmp_path / "run")
    told = [each for each in (tmp_path / "run").rglob("*.log") if "more" in each.read_text()]
    assert told == [tmp_path / "run" / file]
    assert_nothing_is_left(temporary)


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_says_nothing_has_failed(install: Install, tmp_path: Path, code: int) -> None:
    temporary = install(f"print('the last words'); sys.exit({code})")
    with pytest.raises(RunError) as caught:
        run_simulation(settings(), tmp_path / "run")
    log = tmp_path / "run" / "run.log"
    # One line, whatever Flower printed: that is in the log.
    ended = "Flower's own process ended, and the run gave no result; see "
    assert str(caught.value) == f"{ended}{log}"
    assert "the last words" in log.read_text()
    assert_nothing_is_left(temporary)


def test_the_summary_of_an_earlier_run_is_no_result(install: Install, tmp_path: Path) -> None:
    install("time.sleep(0.5)")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RunError, match="gave no result"):
        run_simulation(settings(), tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_a_superlink_that_ends_during_the_run(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "LOG_SECONDS", 0.1)
    ends = "import os, threading\nthreading.Timer(1.0, lambda: os._exit(3)).start()\n" + SUPERLINK
    temporary = install("time.sleep(60)", ends)
    with pytest.raises(RunError, match=r"^Flower's own .* gave no result; see .*run\.log$"):
        run_simulation(settings(), tmp_path / "run")
    assert "SuperLink ['--insecure'" in (tmp_path / "run" / "run.log").read_text()
    assert_nothing_is_left(temporary)


def test_an_interrupt_leaves_nothing(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = install("time.sleep(60)")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flower, "_wait_for_outcome", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_simulation(settings(), tmp_path / "run")
    assert_nothing_is_left(temporary)


def test_what_flower_is_asked(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = install(
        "out = pathlib.Path(config['output-dir'])\n"
        "(out / 'words.json').write_text(json.dumps([sys.argv, config, dict(os.environ)]))\n"
        "tell(None)"
    )
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "60")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    data = DataSettings(name="mnist", root=str(tmp_path / "my data"))
    wanted = settings(num_clients=7, data=data)
    run_simulation(wanted, tmp_path / "run")
    words, config, environment = json.loads((tmp_path / "run" / "words.json").read_text())
    home = Path(environment["FLWR_HOME"])
    assert home.is_relative_to(temporary)
    assert words[1:4] == ["run", str(home / "bundle"), superlink.CONNECTION]
    assert "num-supernodes=7 " in words[words.index("--federation-config") + 1]
    assert words[-1] == "--stream"
    sent = RunSettings.from_json(config["settings"])
    assert sent == wanted
    assert config["output-dir"] == str(tmp_path / "run")
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["FLWR_TELEMETRY_ENABLED"] == environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] == "0.25"
    assert environment["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert environment["no_proxy"].endswith("127.0.0.1,localhost")
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(words[0]).parent)
    assert "RAY_ADDRESS" not in environment
    # Ray's sockets need a short path without spaces, which this one need not be.
    assert len(environment["RAY_TMPDIR"]) <= superlink.MOST_RAY_CHARACTERS
    assert not Path(environment["RAY_TMPDIR"]).exists()


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(
    install: Install, tmp_path: Path
) -> None:
    install("", "raise SystemExit('started')")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"):
        run_simulation(settings(), tmp_path / "file" / "run")


def test_another_port_is_tried(install: Install, tmp_path: Path) -> None:
    late = (
        "import os, pathlib, sys\n"
        "count = pathlib.Path(os.environ['FLWR_HOME'], 'count')\n"
        "tries = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (tries + 1))\n"
        "if tries < 2: sys.exit('address already in use')\n"
    )
    install("", late + SUPERLINK)
    with own_superlink() as started:
        assert (started.home / "count").read_text() == "xxx"
        assert "SuperLink" in started.read_log()
        port = started.process.args[started.process.args.index("--port") + 1]  # type: ignore
        assert int(port) in superlink.PORTS
        assert f"127.0.0.1:{port}" in (started.home / "config.toml").read_text()


def test_a_superlink_that_does_not_start_is_said(install: Install) -> None:
    temporary = install("", "raise SystemExit('the reason')")
    words = r"the SuperLink did not start: the reason$"
    with pytest.raises(RunError, match=words), own_superlink():
        pass
    assert_nothing_is_left(temporary)


def test_a_superlink_that_never_answers_is_said(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = install("", "import time; print('hangs', flush=True); time.sleep(60)")
    monkeypatch.setattr(superlink, "START_SECONDS", 0.3)
    with pytest.raises(RunError, match="the SuperLink did not start"), own_superlink():
        pass
    assert_nothing_is_left(temporary)


def test_without_its_guardian_the_launcher_cleans_itself(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = install()
    real = subprocess.Popen

    def popen(words: list[str], **options: object) -> subprocess.Popen[bytes]:
        broken = [sys.executable, "-c", "raise SystemExit(1)"]
        return real(broken if "-I" in words else words, **options)

    monkeypatch.setattr(superlink.subprocess, "Popen", popen)
    with own_superlink() as started:
        assert started.home.is_dir()
    assert_nothing_is_left(temporary)


def test_a_missing_command_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no-such-command is not installed"):
        find_command("no-such-command", {"PATH": str(tmp_path)})
    python = Path(sys.executable)
    assert find_command(python.name, {"PATH": f"{tmp_path}:{python.parent}"}) == sys.executable


def test_the_commands_are_those_beside_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(superlink.sys, "executable", "/opt/python/bin/python3")
    assert superlink._find_scripts(tmp_path) == Path("/opt/python/bin")
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_in_a_path_with_a_space_is_reached_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place, folder = tmp_path / "my environment", tmp_path / "short"
    folder.mkdir()
    venv.create(place, with_pip=False)
    shown = place / "bin" / "flwr-simulation"
    shown.write_text("import sys; print(sys.executable, sys.prefix, *sys.argv[1:], sep=chr(10))")
    with monkeypatch.context() as patch:
        patch.setattr(superlink.sys, "executable", str(place / "bin" / "python"))
        patch.setattr(superlink.sys, "prefix", str(place))
        scripts = superlink._find_scripts(folder)
    command = find_command("flwr-simulation", {"PATH": str(scripts)})
    done = subprocess.run([command, "a b"], capture_output=True, text=True, check=True)
    executable, prefix, argument = done.stdout.splitlines()
    assert (prefix, argument) == (str(folder / "environment"), "a b")
    assert executable == str(folder / "environment" / "bin" / "python")
    # Removing the link leaves the environment alone.
    assert guardian.clean_up(RunProcesses(str(folder)), [str(folder)])
    assert shown.exists()


@pytest.mark.parametrize(
    ("workers", "gpus", "share"),
    [(1, 0, 0.0), (4, 0, 0.0), (1, 1, 1.0), (4, 1, 0.25), (3, 1, 0.333), (3, 2, 0.5), (2, 8, 1.0)],
)
def test_workers_share_the_gpus(workers: int, gpus: int, share: float) -> None:
    engine = dataclasses.replace(settings().engine, workers=workers)
    words = describe_resources(settings(num_clients=9, engine=engine), gpus).split()
    assert sorted(words) == [
        "client-resources-num-cpus=1",
        f"client-resources-num-gpus={share}",
        f"init-args-num-cpus={workers}",
        f"init-args-num-gpus={gpus}",
        "num-supernodes=9",
    ]
    # As many clients as there are workers fit on the GPUs, each wholly on one.
    assert gpus == 0 or gpus * int(1 / share + 1e-9) >= workers


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")))
def test_any_text_survives_the_run_s_configuration(text: str) -> None:
    assert tomllib.loads(flower.to_toml({"settings": text, "b": ""})) == {
        "settings": text,
        "b": "",
    }


def test_the_bundle_is_the_sources_and_nothing_else(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    write_bundle(bundle)
    for name in ("fl_app", "strategies", "conf"):
        wanted = {
            file.relative_to(REPOSITORY)
            for file in (REPOSITORY / name).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        got = {file.relative_to(bundle) for file in (bundle / name).rglob("*") if file.is_file()}
        assert got == wanted
        assert all(filecmp.cmp(bundle / each, REPOSITORY / each, shallow=False) for each in got)
    assert sorted(file.name for file in bundle.iterdir()) == sorted(
        ["fl_app", "strategies", "conf", "pyproject.toml", "README.md"]
    )
