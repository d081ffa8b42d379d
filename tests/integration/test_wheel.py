"""The wheel: complete, with everything declared that it imports, and it runs from anywhere."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.integration.launcher import Launcher, new_launcher, read_summary

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PACKAGES = ("fl_app", "strategies")


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    return normalise(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def list_imports(folder: Path) -> set[str]:
    """Return the top-level modules that the sources import, at whatever depth."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).split(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_imported_is_declared(package: str) -> None:
    """What only an extra brings is imported inside functions (test_partition_runs)."""
    extras = PROJECT["optional-dependencies"]["hf"]
    declared = {requirement_name(text) for text in [*PROJECT["dependencies"], *extras]}
    owners = packages_distributions()
    undeclared = {
        module
        for module in list_imports(REPOSITORY / package)
        if not {normalise(name) for name in owners[module]} & declared
    }
    assert undeclared == set()


def test_an_undeclared_import_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    import pytest.x as y\n    from . import b\n")
    (tmp_path / "b.py").write_text("from hypothesis.strategies import text\nimport os.path, json\n")
    assert list_imports(tmp_path) == {"pytest", "hypothesis"}


def test_the_tests_need_what_the_dev_extra_has() -> None:
    declared = {
        requirement_name(text)
        for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    }
    owners = packages_distributions()
    imported = list_imports(REPOSITORY / "tests") - {"tests", "bench"}
    assert {
        module
        for module in imported
        if not {normalise(name) for name in owners.get(module, [module])} & declared
    } == set()


@pytest.mark.parametrize(("name", "version"), [("torch", "2.14.1"), ("torchvision", "0.29.1")])
def test_the_versions_at_hand_are_allowed(name: str, version: str) -> None:
    (text,) = (each for each in PROJECT["dependencies"] if requirement_name(each) == name)
    lowest = re.fullmatch(rf"{name}>=([\d.]+)", text)
    assert lowest, "a lower bound alone: pip is to choose"
    assert _numbers(lowest[1]) <= _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"),
        *("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(target)),
    ]
    subprocess.run([*command, str(REPOSITORY)], cwd=target, check=True)
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_is_complete_and_no_more(wheel: Path) -> None:
    wanted = {
        file.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for file in (REPOSITORY / package).rglob("*.py")
    }
    wanted |= {
        f"fl_app/{file.relative_to(REPOSITORY).as_posix()}"
        for file in (REPOSITORY / "conf").rglob("*.yaml")
    }
    wanted |= {"fl_app/bundle/pyproject.toml", "fl_app/bundle/README.md"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == wanted
        scripts = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "fl-app = fl_app.cli:main" in archive.read(scripts).decode()


@pytest.fixture
def installed(wheel: Path) -> Iterator[tuple[Launcher, Path]]:
    """Install the wheel where this interpreter's packages are seen, and the checkout is not.

    The path has a space in it, which Ray's workers do not start from by themselves.
    """
    launcher = new_launcher()
    place = launcher.folder / "my venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    (site,) = (place / "lib").glob("python*/site-packages")
    # Packages only: what is found through another environment's own .pth files is not.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [
        *(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
        *("--no-deps", "--no-index", "--ignore-installed", "--prefix", place, wheel),
    ]
    subprocess.run(command, cwd=launcher.folder, env=_clean_environment(), check=True)
    for entry in distribution("flwr").entry_points:
        if entry.group == "console_scripts":
            module, _, name = entry.value.partition(":")
            script = place / "bin" / entry.name
            # As pip writes a script whose interpreter's path has a space.
            script.write_text(
                f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
                f"import sys\nfrom {module} import {name}\nsys.exit({name}())\n"
            )
            script.chmod(0o755)
    yield launcher, place / "bin"
    launcher.close()


def _clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@pytest.mark.slow
def test_the_wheel_runs_from_another_folder_on_both_engines(
    installed: tuple[Launcher, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, scripts = installed
    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = "import fl_app, strategies; print(fl_app.__file__, strategies.__file__, sep='\\n')"
    python = (str(scripts / "python"), "-c", program)
    code, output, errors = launcher.run(command=python)
    assert (code, errors) == (0, "")
    assert all(Path(file).is_relative_to(scripts.parent) for file in output.splitlines())
    fl_app = (str(scripts / "fl-app"),)
    digests = []
    for engine in ("in_process", "simulation"):
        words = ("num_rounds=2", "num_clients=4", f"engine={engine}", f"hydra.run.dir={engine}")
        code, output, errors = launcher.run("run", *words, command=fl_app)
        assert (code, errors) == (0, "")
        digests.append(read_summary(launcher.folder / engine)["model_sha256"])
    assert digests[0] == digests[1]
    # Nothing of it came from the checkout (in which the tests' own environment may lie).
    commands = [word for command in launcher.commands.values() for word in command]
    assert any(word.endswith("/environment/bin/flwr-simulation") for word in commands)
    ours = [word for word in commands if word.startswith(str(REPOSITORY))]
    assert [word for word in ours if not word.startswith(sys.prefix)] == []
    launcher.assert_nothing_is_left()
    launcher.assert_nothing_is_installed()
