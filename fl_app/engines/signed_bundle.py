"""The app's code as one signed file, which devices check before they run it.

Flower's SuperNode does the checking (``--trusted-entities``); its SuperLink takes signatures from a
hub only, which `bundle_hub` is for a SuperLink of one's own. A signature is over the SHA-256 of the
file and the time of signing, as Flower defines it.
"""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_app.engines.bundle import write_bundle
from fl_app.engines.superlink import find_command
from fl_app.errors import ConfigError, RunError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BUNDLE_FILE, SIGNATURES_FILE = "bundle.fab", "signatures.json"


@dataclass(frozen=True)
class Signature:
    """Who has signed a bundle.

    Attributes
    ----------
    signer : str
        The key's fingerprint, as ``ssh-keygen -l`` prints it; devices name it in their file of
        trusted signers.
    public_key : str
        The key, as OpenSSH writes it.
    """

    signer: str
    public_key: str


def name_app(bundle: Path) -> str:
    """Return what Flower calls the app in a bundle's folder, ``@account/app==version``."""
    return "==".join(_read_project((bundle / "pyproject.toml").read_text(encoding="utf-8")))


def sign_bundle(folder: Path, key: Path) -> Signature:
    """Sign the code that is installed here, as a bundle in a folder.

    A folder without one gets it. To one that is there, from somebody else who signed the same
    code, the signature is added.

    Parameters
    ----------
    folder : Path
        For ``bundle.fab`` and ``signatures.json``; made if it is missing.
    key : Path
        An Ed25519 private key as ``ssh-keygen -t ed25519`` writes it, without a passphrase.

    Raises
    ------
    ConfigError
        If the key cannot be read or is of another kind.
    RunError
        If the bundle in the folder is not the code that is installed here, or cannot be written.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = _read_key(key)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    signer = fingerprint(public)
    with tempfile.TemporaryDirectory(prefix="fl-app-") as name:
        built = _build(Path(name))
    bundle, signatures = folder / BUNDLE_FILE, folder / SIGNATURES_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others: list[dict[str, Any]] = []
        if bundle.exists():
            # Read once: what is compared is what is signed, whoever else writes there.
            found = bundle.read_bytes()
            # Not the bytes: another machine's compression may differ.
            if _unpack(found) != _unpack(built):
                raise RunError(
                    f"{bundle} is not the code that is installed here: install that code, read "
                    "it, and sign it there; or remove the file, to sign this code"
                )
            built = found
            others = [each for each in read_signatures(folder) if each["public_key_id"] != signer]
        signed_at = int(time.time())
        message = signed_at.to_bytes(8, "big") + hashlib.sha256(built).digest()
        text = base64.urlsafe_b64encode(private.sign(message)).rstrip(b"=").decode()
        entry = {"public_key_id": signer, "signature": text, "signed_at": signed_at}
        _replace(bundle, built)
        _replace(signatures, json.dumps([*others, entry], indent=1).encode())
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}") from error
    return Signature(signer, public)


def read_signatures(folder: Path) -> list[dict[str, Any]]:
    """Return the signatures beside a bundle, for Flower; none if there is no such file."""
    file = folder / SIGNATURES_FILE
    if not file.exists():
        return []
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        kept = ("public_key_id", "signature", "signed_at")
        return [{key: entry[key] for key in kept} for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} does not hold signatures") from error


def read_name(bundle: bytes) -> tuple[str, str]:
    """Return Flower's name of a bundle, ``@account/app``, and its version."""
    return _read_project(_unpack(bundle)["pyproject.toml"].decode())


def _read_project(text: str) -> tuple[str, str]:
    project = tomllib.loads(text)
    publisher, name = project["tool"]["flwr"]["app"]["publisher"], project["project"]["name"]
    return f"@{publisher}/{name}", str(project["project"]["version"])


def fingerprint(public_key: str) -> str:
    """Return the fingerprint of a public key in OpenSSH's form, as ``ssh-keygen -l`` prints it."""
    blob = base64.b64decode(public_key.split()[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).rstrip(b"=").decode()
    return f"SHA256:{digest}"


def _build(folder: Path) -> bytes:
    write_bundle(folder / "bundle")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": path}
    command = find_command("flwr", environment)
    done = subprocess.run(
        [command, "build", "--app", str(folder / "bundle")],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    built = list(folder.glob("*.fab"))
    if len(built) != 1:
        raise RunError(f"flwr build: {' '.join(done.stderr.split())[-600:]}")
    return built[0].read_bytes()


def _unpack(bundle: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as file:
            return {name: file.read(name) for name in file.namelist()}
    except zipfile.BadZipFile as error:
        raise RunError(f"{BUNDLE_FILE} is not a bundle") from error


def _read_key(path: Path) -> "Ed25519PrivateKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    rule = "an Ed25519 private key of OpenSSH without a passphrase (ssh-keygen -t ed25519 -N '')"
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("KEY", str(path), rule)
    return key


def _replace(file: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    with open(descriptor, "wb") as opened:
        opened.write(content)
        os.fchmod(opened.fileno(), 0o644)
    os.replace(temporary, file)
