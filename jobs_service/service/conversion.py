"""Converts, or refuses, a store of an earlier format when it is opened."""

from __future__ import annotations

from contextvars import ContextVar

from jobs_service.actors.context import Context
from jobs_service.errors import StoreError
from jobs_service.layer.conversion import convert

UPGRADES: ContextVar[bool] = ContextVar("upgrades", default=False)
"""Whether to convert a store that many programs share: only `jobs-service upgrade` sets it."""


async def convert_if_needed(context: Context) -> int | None:
    """Convert a store of an earlier format.

    Returns:
        Number of newly counted jobs; None for a store of the current format.

    Raises:
        StoreError: only `jobs-service upgrade` converts this one.
    """
    store = context.store
    if not await store.needs_conversion():
        return None
    if not store.converts_when_opened and not UPGRADES.get():
        raise StoreError(
            f"store {store.address} has the format of an earlier version: end the programs that use it, then run "
            "jobs-service upgrade"
        )
    await store.begin_conversion()
    counted = await convert(store, context.keyspace, context.sources)
    await store.end_conversion()
    return counted
