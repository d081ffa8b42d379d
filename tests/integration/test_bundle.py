"""What Flower bundles: the packages and the configuration, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

FLWR = Path(sys.executable).parent / "flwr"
MOST_BYTES = 2_000_000
DECOYS = (
    *("outputs/2030-01-01/summary.json", "multirun/a.yaml", "shared/data/readme.md"),
    *("data.npz", "notes.md", "deploy.toml", "more.json", "secret.pem", "conf2/config.yaml"),
    *("tests/test_new.py", "bench/new.py", "build/lib/fl_app/cli.py", "dist/a.json"),
    *(".venv/lib/module.py", "fl_app/__pycache__/cli.cpython-311.pyc", "tests/README.md"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the checkout, and add what lies about in one that is used."""
    folder = tmp_path / "private-fl-app"
    folder.mkdir()
    for name in ("fl_app", "strategies", "conf", "tests", "bench"):
        if (REPOSITORY / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, folder / name, ignore=skip)
    for file in REPOSITORY.iterdir():
        if file.is_file():
            shutil.copy(file, folder / file.name)
    for name in DECOYS:
        decoy = folder / name
        decoy.parent.mkdir(parents=True, exist_ok=True)
        decoy.write_text("")
    return folder


def build(checkout: Path, target: Path) -> Path:
    target.mkdir()
    environment = {
        **os.environ,
        "FLWR_HOME": str(target / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    done = subprocess.run(
        [FLWR, "build", "--app", checkout],
        cwd=target,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (bundle,) = target.glob("*.fab")
    return bundle


def list_wanted() -> list[str]:
    packages = [
        file.relative_to(REPOSITORY).as_posix()
        for name, kind in (("fl_app", "py"), ("strategies", "py"), ("conf", "yaml"))
        for file in (REPOSITORY / name).rglob(f"*.{kind}")
    ]
    return sorted([*packages, "README.md", "pyproject.toml", ".info/CONTENT"])


def test_the_bundle_holds_the_sources_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    bundle = build(checkout, tmp_path / "built")
    with zipfile.ZipFile(bundle) as archive:
        assert sorted(archive.namelist()) == list_wanted()
        for name in archive.namelist():
            if name.endswith((".py", ".yaml", ".md")):
                assert archive.read(name) == (REPOSITORY / name).read_bytes()
    assert bundle.stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_an_unpacked_bundle_works_alone(checkout: Path, tmp_path: Path) -> None:
    """As Flower loads it: found before what is installed, with conf/ beside the packages."""
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(build(checkout, tmp_path / "built")) as archive:
        archive.extractall(unpacked)
    program = (
        "import json, sys, fl_app.server_app, fl_app.client_app, strategies.dp_fedpaq\n"
        "from fl_app.config import compose_settings\n"
        "settings = compose_settings(['strategy=fedavg'])\n"
        "print(json.dumps([m.__file__ for n, m in sorted(sys.modules.items())\n"
        "    if n.split('.')[0] in ('fl_app', 'strategies') and m.__file__]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    files = json.loads(done.stdout.splitlines()[-1])
    assert len(files) > 20
    assert all(Path(file).is_relative_to(unpacked) for file in files)


def test_the_app_s_entry_points_and_its_configuration_exist() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for reference in project["components"].values():
        module, _, name = reference.partition(":")
        source = (REPOSITORY / (module.replace(".", "/") + ".py")).read_text()
        assert f"\n{name} = " in source
    # Whatever the entry points and the launcher name, Flower accepts only what is listed.
    public = {"overrides", "output-dir"}
    launcher = {"settings", "outcome-file", "state-dir", "stop-file", "resume", "mark"}
    assert set(project["config"]) == public | launcher
    assert not any(project["config"].values())
