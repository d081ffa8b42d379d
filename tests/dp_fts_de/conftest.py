import pytest

from fl_app.engines.flower_internals import identify_process


@pytest.fixture(autouse=True)
def _identity() -> None:
    identify_process(1)
