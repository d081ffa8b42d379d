"""Who is not let in: devices that nobody has registered, and whoever trusts another authority."""

from pathlib import Path

import pytest

from tests.deployment.federation import DEPLOY, Federation

pytestmark = [pytest.mark.slow, pytest.mark.deployment]


def test_an_unregistered_device_is_refused(federation: Federation) -> None:
    stranger = federation.add_device("partition-id=5", "num-partitions=6")
    federation.start_device(stranger)
    assert stranger.process is not None
    process = stranger.process
    federation.wait_until(lambda: process.poll() is not None, "the stranger gives up")
    assert process.returncode != 0
    assert "Exit Code: 305" in stranger.log
    assert federation.num_online() == 5


def test_another_authority_s_certificate_is_refused(federation: Federation, tmp_path: Path) -> None:
    federation.call(str(DEPLOY / "certificates.sh"), str(tmp_path / "tls"))
    authority = tmp_path / "tls" / "ca.crt"
    device = federation.add_device("partition-id=5", "num-partitions=6")
    federation.register(device)
    federation.start_device(device, authority=authority)
    assert device.process is not None
    federation.wait_until(lambda: "certificate" in device.log.lower(), "the device says why")
    assert federation.num_online() == 5
    device.process.terminate()
    federation.connect("wrong", federation.address, authority)
    code, _, errors = federation.finish(
        federation.start_run("num_clients=5", folder=tmp_path / "run", superlink="wrong")
    )
    assert code == 1
    assert errors.startswith("fl-app: SuperLink wrong: ")
    assert len(errors.splitlines()) == 1


def test_a_superlink_that_is_not_in_flower_s_configuration(
    federation: Federation, tmp_path: Path
) -> None:
    code, _, errors = federation.finish(
        federation.start_run("num_clients=5", folder=tmp_path / "run", superlink="nowhere")
    )
    assert code == 1
    assert errors.startswith("fl-app: SuperLink nowhere: ")
    assert len(errors.splitlines()) == 1
