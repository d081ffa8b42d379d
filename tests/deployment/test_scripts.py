"""The scripts and files in deploy/: they say how they are used, and certify what they say."""

import configparser
import datetime
import ipaddress
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

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
