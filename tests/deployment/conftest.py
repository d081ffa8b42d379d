from collections.abc import Iterator

import pytest

from tests.deployment.federation import Federation, start_federation


@pytest.fixture(scope="package")
def federation() -> Iterator[Federation]:
    """Five devices whose owners allow seeded runs and all methods; tests leave them as they were.

    DP-FTS-DE's noise is the server's, which an owner allows by name.
    """
    allowed = 'allowed-strategies="dp_fedpaq,niss,dp_fts_de"'
    with start_federation(5, "allow-seeded=true", allowed) as started:
        yield started
