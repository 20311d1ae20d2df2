"""The stores that are shown: those that are served over HTTP."""

from tests.http.conftest import address, lasting, lasting_kind, store_kind

__all__ = ["address", "lasting", "lasting_kind", "store_kind"]
