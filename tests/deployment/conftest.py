from collections.abc import Iterator

import pytest

from tests.deployment.federation import Federation, start_federation


@pytest.fixture(scope="package")
def federation() -> Iterator[Federation]:
    """Five devices whose owners allow seeded runs; tests leave them as they were."""
    with start_federation(5, "allow-seeded=true") as started:
        yield started
