"""Signed bundles and the hub that offers them, judged by Flower's own parts."""

import base64
import hashlib
import io
import json
import subprocess
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.fab import Fab
from flwr.supercore.utils import request_download_link
from flwr.supernode.start_client_internal import _verify_fab

from fl_app.engines.bundle_hub import open_hub
from fl_app.engines.signed_bundle import (
    BUNDLE_FILE,
    SIGNATURES_FILE,
    read_name,
    read_signatures,
    sign_bundle,
)
from fl_app.errors import ConfigError, RunError

CONTENT = ".info/CONTENT"
NAME, VERSION = "@private-fl/private-fl-app", "0.1.0"


def make_key(folder: Path, name: str = "key", kind: str = "ed25519", passphrase: str = "") -> Path:
    file = folder / name
    words = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "me", "-f", str(file)]
    subprocess.run(words, check=True)
    return file


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with a signed bundle, and who is trusted."""
    here = tmp_path_factory.mktemp("signed")
    signature = sign_bundle(here / "bundle", make_key(here))
    return here / "bundle", {signature.signer: signature.public_key}


@pytest.fixture
def folder(signed: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    target = tmp_path / "bundle"
    target.mkdir()
    for name in (BUNDLE_FILE, SIGNATURES_FILE):
        (target / name).write_bytes((signed[0] / name).read_bytes())
    return target


@pytest.fixture
def hub(folder: Path) -> Iterator[str]:
    """Where the hub of the folder listens, as Flower's setting names it."""
    server = open_hub(folder, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def accepts(folder: Path, trusted: dict[str, str]) -> bool:
    """Whether a SuperNode runs what is in the folder."""
    entries = {each["public_key_id"]: json.dumps(each) for each in read_signatures(folder)}
    content = (folder / BUNDLE_FILE).read_bytes()
    return _verify_fab(Fab("", content, {**entries, "valid_license": "Valid"}), trusted)


def rewrite(bundle: Path, name: str, more: bytes) -> None:
    """Append to a file in a bundle, which stays one that Flower installs."""
    with zipfile.ZipFile(io.BytesIO(bundle.read_bytes())) as old:
        files = {each: old.read(each) for each in old.namelist()}
    files[name] += more
    hashed = hashlib.sha256(files[name]).hexdigest()
    lines = files[CONTENT].decode().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name},")]
    assert len(kept) == len(lines) - 1
    line = f"{name},{hashed},{8 * len(files[name])}"
    files[CONTENT] = "\n".join([*kept, line]).encode()
    with zipfile.ZipFile(bundle, "w") as new:
        for each, content in files.items():
            new.writestr(each, content)


def test_a_supernode_accepts_what_a_trusted_key_has_signed(signed, tmp_path: Path) -> None:
    folder, trusted = signed
    assert accepts(folder, trusted)
    assert not accepts(folder, {})
    stranger = (make_key(tmp_path).with_suffix(".pub")).read_text()
    assert not accepts(folder, dict.fromkeys(trusted, stranger))


def test_the_signer_is_the_key_s_fingerprint(signed) -> None:
    folder, trusted = signed
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(folder.parent / "key.pub")], capture_output=True, text=True
    ).stdout
    (signer,) = trusted
    assert shown.split()[1] == signer
    assert (folder.parent / "key.pub").read_text().startswith(trusted[signer])


def test_the_bundle_holds_the_code_and_the_configuration(signed) -> None:
    content = (signed[0] / BUNDLE_FILE).read_bytes()
    assert read_name(content) == (NAME, VERSION)
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert {"fl_app/client_app.py", "strategies/__init__.py", "conf/config.yaml"} <= set(names)


@pytest.mark.parametrize("name", ["fl_app/client_app.py", "conf/config.yaml", "pyproject.toml"])
def test_altered_code_is_not_accepted(folder: Path, signed, name: str) -> None:
    assert accepts(folder, signed[1])
    rewrite(folder / BUNDLE_FILE, name, b"\n# more\n")
    assert not accepts(folder, signed[1])


@pytest.mark.parametrize("key", ["signature", "signed_at"])
def test_an_altered_signature_is_not_accepted(folder: Path, signed, key: str) -> None:
    (entry,) = read_signatures(folder)
    if key == "signed_at":
        entry[key] += 1
    else:
        raw = bytearray(base64.urlsafe_b64decode(entry[key] + "=="))
        raw[0] ^= 1
        entry[key] = base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()
    (folder / SIGNATURES_FILE).write_text(json.dumps([entry]))
    assert not accepts(folder, signed[1])


@pytest.mark.slow
def test_a_second_signer_is_added_and_a_key_signs_once(folder: Path, signed, tmp_path) -> None:
    before = (folder / BUNDLE_FILE).read_bytes()
    key = make_key(tmp_path)
    second = sign_bundle(folder, key)
    assert sign_bundle(folder, key) == second
    assert (folder / BUNDLE_FILE).read_bytes() == before
    assert len(read_signatures(folder)) == 2
    assert accepts(folder, signed[1])
    assert accepts(folder, {second.signer: second.public_key})


def test_only_the_code_that_is_installed_is_signed(folder: Path, tmp_path: Path) -> None:
    rewrite(folder / BUNDLE_FILE, "fl_app/client_app.py", b"\nimport os\n")
    before = read_signatures(folder)
    with pytest.raises(RunError, match="is not the code that is installed here"):
        sign_bundle(folder, make_key(tmp_path))
    assert read_signatures(folder) == before
    (folder / BUNDLE_FILE).write_bytes(b"no bundle")
    with pytest.raises(RunError, match="is not a bundle"):
        sign_bundle(folder, tmp_path / "key")


def test_what_is_compared_is_what_is_signed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else who may write to the folder changes the file when it has been read."""
    read, bundle = Path.read_bytes, folder / BUNDLE_FILE

    def read_and_change(self: Path) -> bytes:
        content = read(self)
        if self == bundle:
            bundle.write_bytes(b"other code")
        return content

    key = make_key(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", read_and_change)
    second = sign_bundle(folder, key)
    monkeypatch.undo()
    assert read_name(bundle.read_bytes()) == (NAME, VERSION)
    assert accepts(folder, {second.signer: second.public_key})
    assert sorted(each.name for each in folder.iterdir()) == [BUNDLE_FILE, SIGNATURES_FILE]


def test_other_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    keys = [
        *(tmp_path / "missing", tmp_path / "text", tmp_path),
        make_key(tmp_path, "other", kind="ecdsa"),
        make_key(tmp_path, "locked", passphrase="secret"),
        make_key(tmp_path).with_suffix(".pub"),
    ]
    for key in keys:
        with pytest.raises(ConfigError, match="an Ed25519 private key"):
            sign_bundle(tmp_path / "bundle", key)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("text", ["{", "[1]", '[{"signature": "a"}]', "1"])
def test_signatures_that_are_none(folder: Path, text: str) -> None:
    (folder / SIGNATURES_FILE).write_text(text)
    with pytest.raises(RunError, match="does not hold signatures"):
        read_signatures(folder)


def test_a_superlink_gets_the_bundle_from_the_hub(hub: str, folder: Path, signed) -> None:
    for version in (VERSION, None):
        address, signatures, note = request_download_link(
            NAME, version, f"{hub}/hub/fetch-fab", "fab_url"
        )
        assert signatures == read_signatures(signed[0])
        assert note is None
        with urllib.request.urlopen(address) as answer:
            assert answer.read() == (folder / BUNDLE_FILE).read_bytes()


def test_the_hub_has_nothing_else(hub: str, folder: Path) -> None:
    ask = f"{hub}/hub/fetch-fab"
    for name, version, path in [
        ("@somebody/else", None, ask),
        (NAME, None, f"{hub}/hub/fetch-zip"),
        (NAME, "9.9.9", ask),
    ]:
        with pytest.raises(ValueError, match="not found in Platform API"):
            request_download_link(name, version, path, "fab_url")
    root = hub.removesuffix("/v1")
    for path in ("/", f"/../{folder.name}/{SIGNATURES_FILE}", f"/{SIGNATURES_FILE}"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(root + path)
    for body in (b"", b"[]", b"{}", b"\xff", b'{"app_id": 1}'):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(ask, data=body)
    (folder / BUNDLE_FILE).unlink()
    with pytest.raises(ValueError, match="not found in Platform API"):
        request_download_link(NAME, None, ask, "fab_url")


def test_an_unsigned_bundle_is_offered_without_signatures(hub: str, folder: Path) -> None:
    (folder / SIGNATURES_FILE).unlink()
    _, signatures, _ = request_download_link(NAME, None, f"{hub}/hub/fetch-fab", "fab_url")
    assert signatures == []
    assert not accepts(folder, {})
