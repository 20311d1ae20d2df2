"""The stores that are served, and what of the tests of HTTP needs tools that may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.http import support
from tests.stores import EVERY_LASTING_STORE, QUICKEST_AND_CLUSTER, StoreKind, one_of

# Beside the lowest releases that the package takes, `scripts/test --long lowest` cannot install it.
collect_ignore = [] if find_spec("schemathesis") else ["test_openapi.py"]

store_kind = one_of(QUICKEST_AND_CLUSTER)
lasting_kind = one_of(EVERY_LASTING_STORE)


@pytest.fixture
def address(store_kind: StoreKind, tmp_path: Path) -> Iterator[str]:
    """The address of the test's store, which `served` and `listening` serve where they are given none."""
    # The fixture monkeypatch is the test's own, which may undo what it has done before its end.
    with pytest.MonkeyPatch.context() as patch:
        found = store_kind.address_in(tmp_path)
        patch.setattr(support, "here", found)
        yield found


@pytest.fixture
def lasting(lasting_kind: StoreKind, tmp_path: Path) -> str:
    """The address of a store in which there is again what was written, when it is opened anew."""
    return lasting_kind.address_in(tmp_path)
