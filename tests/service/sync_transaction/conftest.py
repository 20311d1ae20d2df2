"""What the tests of blocks have in common."""

from __future__ import annotations

import pytest

from tests.service.sync_transaction.support import APPLICATIONS
from tests.stores import ADDRESSED, EVERY_STORE, StoreKind


@pytest.fixture(params=[each for kind, each in zip(ADDRESSED, EVERY_STORE, strict=True) if kind.name in APPLICATIONS])
def store_kind(request: pytest.FixtureRequest) -> StoreKind:
    """Every kind of store that has such transactions."""
    kind = request.param
    assert isinstance(kind, StoreKind)
    return kind
