"""Jobs as earlier versions have left them."""

from __future__ import annotations

from jobs_service import JobsService
from jobs_service.layer.keyspace import COUNTS, DATA, FAILED, HOURS, MINUTES, RETRYING, Keyspace
from jobs_service.store.base import Transaction


async def uncount(jobs: JobsService) -> None:
    """Make all jobs as version 2 has left them: without whatever came later."""
    sections = Keyspace(await jobs.store.prefix()).sections

    async def change(transaction: Transaction) -> None:
        for key, raw in await transaction.get_range(sections[DATA], sections[DATA] + b"\xff"):
            assert raw[:1] == b"\x03"
            transaction.set(key, b"\x02" + raw[1:])
        for number in (COUNTS, MINUTES, HOURS, FAILED, RETRYING):
            transaction.clear_range(sections[number], sections[number] + b"\xff")

    await jobs.store.transact(change)
