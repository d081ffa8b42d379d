"""Devices that run signed code only, as deploy/ and fl-app sign set it up."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_app.device_state import STATE_FILE, list_entries
from fl_app.engines.signed_bundle import BUNDLE_FILE, SIGNATURES_FILE
from tests.deployment.federation import Federation, start_federation
from tests.fl_app.test_signed_bundle import rewrite
from tests.integration.launcher import FL_APP

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

SETTINGS = ("num_clients=2", "num_rounds=2")


@pytest.fixture(scope="module")
def careful() -> Iterator[Federation]:
    """Two devices whose owners trust the signer of a bundle on the SuperLink."""

    def trust(federation: Federation) -> None:
        key, bundle = federation.folder / "signer", federation.folder / "link" / "bundle"
        federation.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        line = federation.call(*FL_APP, "sign", str(key), str(bundle))
        for device in federation.devices:
            (device.folder / "trusted.yaml").write_text(line)

    with start_federation(2, prepare=trust) as started:
        yield started


def count_entries(federation: Federation) -> int:
    states = [device.folder / "state" for device in federation.devices]
    return sum(len(list_entries(each)) for each in states if (each / STATE_FILE).is_file())


def count_refusals(log: str) -> int:
    """Count what a SuperNode says when it does not run code: no signatures, or none it trusts."""
    return log.count("The FAB could not be verified") + log.count("could not verify the FAB")


def refused(federation: Federation, folder: Path, *overrides: str) -> None:
    before = count_entries(federation)
    logs = [count_refusals(device.log) for device in federation.devices]
    code, _, errors = federation.finish(federation.start_run(*SETTINGS, *overrides, folder=folder))
    assert code == 1
    reason = errors.splitlines()[-1]
    assert reason.startswith("fl-app: 0 of 2 nodes take part after 120 s; 2 needed")
    assert "; 2 left out: could not verify the code (sign it, with fl-app sign, and set" in reason
    assert count_entries(federation) == before
    for device, old in zip(federation.devices, logs, strict=True):
        assert count_refusals(device.log) == old + 1, errors + device.log[-3000:]


def test_only_the_signed_code_is_run(careful: Federation, tmp_path: Path) -> None:
    outcome = careful.run(*SETTINGS, "engine.signed=true", folder=tmp_path / "run")
    assert all(row["num_replies"] == 2 for row in outcome.rows[1:])
    done = count_entries(careful)
    assert done == 2

    # What a launcher sends by itself bears no signature.
    refused(careful, tmp_path / "unsigned")

    bundle = careful.folder / "link" / "bundle"
    good = {name: (bundle / name).read_bytes() for name in (BUNDLE_FILE, SIGNATURES_FILE)}
    rewrite(bundle / BUNDLE_FILE, "fl_app/client_app.py", b"\nprint('altered')\n")
    refused(careful, tmp_path / "altered", "engine.signed=true")

    (bundle / BUNDLE_FILE).write_bytes(good[BUNDLE_FILE])
    stranger = careful.folder / "stranger"
    careful.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger))
    (bundle / SIGNATURES_FILE).unlink()
    careful.call(*FL_APP, "sign", str(stranger), str(bundle))
    refused(careful, tmp_path / "stranger", "engine.signed=true")

    # A signature of the trusted one under a stranger's bundle.
    entries = json.loads(good[SIGNATURES_FILE])
    entries[0]["signed_at"] += 1
    (bundle / SIGNATURES_FILE).write_text(json.dumps(entries))
    refused(careful, tmp_path / "forged", "engine.signed=true")
    assert "altered" not in "".join(device.log for device in careful.devices)

    (bundle / SIGNATURES_FILE).write_bytes(good[SIGNATURES_FILE])
    careful.run(*SETTINGS, "engine.signed=true", folder=tmp_path / "again")
    assert count_entries(careful) == done + 2
