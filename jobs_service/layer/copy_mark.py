"""The mark of a store into which a copy is under way: until all is there, nobody else may use the store."""

from __future__ import annotations

from typing import Final

from jobs_service.errors import StoreError
from jobs_service.layer.keyspace import COPYING, Keyspace
from jobs_service.store.base import Store

MARK_BYTES: Final = 8
"""Of the mark's value, which is random: each copy knows its own."""


def mark_key(keyspace: Keyspace) -> bytes:
    """Return the key of the mark."""
    return keyspace.sections[COPYING]


async def refuse_half_copied(store: Store, keyspace: Keyspace) -> None:
    """Refuse a store that has the mark.

    Raises:
        StoreError: the store has it.
    """
    if await store.read(lambda tr: tr.get(mark_key(keyspace))) is not None:
        raise half_copied(store.address)


def half_copied(address: str) -> StoreError:
    """Return the error for a store that has the mark."""
    return StoreError(
        f"store {address} is half a copy: begin it anew with jobs-service copy FROM {address} --anew, or remove it"
    )
