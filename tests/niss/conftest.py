import pytest

from fl_app.engines.flower_internals import identify_process
from tests.niss.hostile_server import Wiretap


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)


@pytest.fixture
def wiretap(monkeypatch: pytest.MonkeyPatch) -> Wiretap:
    return Wiretap(monkeypatch)
