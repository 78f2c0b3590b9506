"""Four processes for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crew import Crew, crew_of


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Four ranks over gloo on loopback."""
    with crew_of(4) as running:
        yield running
