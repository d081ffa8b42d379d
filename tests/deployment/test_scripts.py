"""The scripts and files in deploy/: they say how they are used, and certify what they say."""

import configparser
import datetime
import fnmatch
import ipaddress
import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from tests.conftest import REPOSITORY
from tests.deployment.federation import DEPLOY

SCRIPTS = sorted(DEPLOY.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_how_it_is_used(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    done = subprocess.run([str(script)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: {script.name} ")
    assert done.stdout == ""


def test_certificates(tmp_path: Path) -> None:
    words = [str(DEPLOY / "certificates.sh"), str(tmp_path / "tls")]
    hosts = ["fl.example.org", "192.0.2.7", "2001:db8::1"]
    subprocess.run([*words, *hosts], check=True, capture_output=True)
    folder = tmp_path / "tls"
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in folder.glob("*.[kc]*")} == {
        **{"ca.key": "0o600", "superlink.key": "0o600"},
        **{"ca.crt": "0o644", "superlink.crt": "0o644"},
    }
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    made = x509.load_pem_x509_certificate((folder / "superlink.crt").read_bytes())
    made.verify_directly_issued_by(authority)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("192.0.2.7"),
        ipaddress.ip_address("2001:db8::1"),
    ]
    for certificate, is_authority in ((authority, True), (made, False)):
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert found.ca == is_authority
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.key_size == 384
        lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert lasts <= datetime.timedelta(days=1825)
    # The authority stays when the certificate is renewed.
    subprocess.run(words, check=True, capture_output=True)
    assert x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()) == authority
    renewed = x509.load_pem_x509_certificate((folder / "superlink.crt").read_bytes())
    renewed.verify_directly_issued_by(authority)
    assert renewed.serial_number != made.serial_number


def test_a_device_s_first_start_makes_its_key_and_ends(tmp_path: Path) -> None:
    words = [str(DEPLOY / "supernode.sh"), str(tmp_path / "device"), "127.0.0.1:1", "ca.crt"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=tmp_path)
    key = tmp_path / "device" / "key"
    assert str(key) + ".pub" in done.stdout
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "device").stat().st_mode & 0o777 == 0o700
    assert key.with_suffix(".pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_services_and_containers_call_the_scripts_as_they_are_used() -> None:
    commands = []
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(unit)
        commands.append(parser["Service"]["ExecStart"])
        assert parser["Service"]["User"] == "fl-app"
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    commands += [service["command"] for service in composed["services"].values()]
    assert len(commands) == 5
    for command in commands:
        script, *arguments = shlex.split(command)
        name = script.rpartition("/")[2]
        assert (DEPLOY / name).is_file()
        assert len(arguments) >= {"superlink.sh": 2, "supernode.sh": 3}[name]


def is_in_image(name: str) -> bool:
    """Return what .dockerignore decides, by the last pattern that fits the file or its folder."""
    parts = name.split("/")
    folders = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    decided = True
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!")
        if not line or line.startswith("#"):
            continue
        if pattern.startswith("**/"):
            fits = any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
        else:
            fits = any(
                folder.count("/") == pattern.count("/") and fnmatch.fnmatchcase(folder, pattern)
                for folder in folders
            )
        if fits:
            decided = line.startswith("!")
    return decided


@pytest.mark.parametrize(
    "name",
    [
        *(
            "deploy/tls/ca.key",
            "deploy/tls/superlink.key",
            "deploy/data/device0/x.csv",
            "fl/signer",
        ),
        *("fl/device0/key", "fl/tls/ca.key", ".venv/bin/python", ".git/config", "me.key", ".env"),
        *("outputs/run/model.safetensors", "fl_app/__pycache__/cli.pyc", "device0.pub"),
        *("deploy/bundle/bundle.fab", "shared/data/x", "tests/conftest.py"),
    ],
)
def test_no_key_and_no_data_come_into_the_image(name: str) -> None:
    assert not is_in_image(name)


def test_the_image_has_what_is_installed_and_the_scripts() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"]]
    needed += project["project"]["license-files"]
    for name in [*needed, "fl_app/cli.py", "conf/data/mnist.yaml", "strategies/niss/server.py"]:
        assert (REPOSITORY / name).exists()
        assert is_in_image(name)
    assert all(is_in_image(f"deploy/{script.name}") for script in SCRIPTS)


def test_a_device_s_relative_folders_are_those_of_its_caller(tmp_path: Path) -> None:
    """Of PYTHONPATH, too, although it runs in a folder of its own; state-dir may be named."""
    words = [str(DEPLOY / "supernode.sh"), "device", "127.0.0.1:1", "ca.crt"]
    subprocess.run(words, check=True, capture_output=True, cwd=tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if '-m' in sys.orig_argv:\n"
        "    print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n', flush=True)\n"
        "    os._exit(0)\n"
    )
    policy = ["partition-id=0", 'data={"name": "har_geotec"}']
    for more in ([], ["state-dir=/elsewhere"]):
        done = subprocess.run(
            [*words, "9094", *policy, *more],
            env={**os.environ, "PYTHONPATH": f"own{os.pathsep}/there"},
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        path, *arguments = done.stdout.splitlines()
        assert path == f"{tmp_path / 'own'}{os.pathsep}/there"
        place = arguments.index("--")
        assert arguments[place - 2 : place] == ["--state-dir", str(tmp_path / "device" / "state")]
        assert arguments[place + 1 :] == [*policy, *more]
