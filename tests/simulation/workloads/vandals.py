"""Damage: records that cannot be read, at the very places where services look first. All other jobs must not notice.

The damaged jobs are no part of the history: their ids begin with a mark, by which everybody else leaves them out.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar, Final

import fdb.tuple

from jobs_service import JobNotFound, JobsError, JobType, RecordDamaged, StoreError
from jobs_service.store.base import Transaction
from tests.simulation.client import Client
from tests.simulation.rows import DAMAGED, MARK, data_key, section
from tests.simulation.workloads.base import Workload

_OLD_SEQ: Final = b"\x33" + bytes(11) + b"\x01"
"""A versionstamp of the tuple layer that is older than all others."""
_RECORDS: Final = (
    b"",
    b"\x01",
    b"\x01" + b"\xff" * 80,
    b"\x09" + bytes(60),
    b"no record at all, but longer than the fixed part of one is",
)


class Vandals(Workload):
    """Leave a record that cannot be read in an index, in front of all others; ask for it; perhaps remove it."""

    name = "vandals"
    weight: ClassVar[int] = 3

    def __init__(self, run: object) -> None:
        super().__init__(run)  # type: ignore[arg-type]
        self._count = 0

    async def step(self, client: Client) -> None:
        type, id = self.some_type(), f"{DAMAGED}{self._count}"
        self._count += 1
        key, value = self._index_entry(type, id, client.process.clock.wall_time())
        record = self.random.choice(_RECORDS)

        async def plant(transaction: Transaction) -> None:
            transaction.set(data_key(type, id), record)
            transaction.set(key, value)

        await client.jobs.store.transact(plant)
        await asyncio.sleep(self.random.choice([0.0, 1.0, 5.0]))
        with contextlib.suppress(StoreError):
            await self._look(client, type, id)

    async def _look(self, client: Client, type: object, id: str) -> None:
        """Whoever asks for the job is told what is wrong with it, until it is removed by force."""
        jobs = client.jobs
        with contextlib.suppress(RecordDamaged, TimeoutError):
            if self.random.random() < 0.5:
                await jobs.get(type, id)  # type: ignore[arg-type]
            else:
                await jobs.wait(type, id, timeout=5.0)  # type: ignore[arg-type]
            self.run.complain(f"damaged: {type!r}/{id!r} was read")
        if self.random.random() < 0.5:
            await client.remove(type, id, force=True)  # type: ignore[arg-type]
            try:
                await jobs.get(type, id)  # type: ignore[arg-type]
                self.run.complain(f"damaged: {type!r}/{id!r} is there after it was removed")
            except JobNotFound:
                pass
            except JobsError as error:
                if isinstance(error, RecordDamaged):
                    self.run.complain(f"damaged: {type!r}/{id!r} is there after it was removed")

    def _index_entry(self, type: JobType, id: str, now: float) -> tuple[bytes, bytes]:
        """Return the key and value of an index entry that comes before those of others."""

        def key(family: str, *packed: bytes) -> bytes:
            return b"".join((section(family), fdb.tuple.pack((type,)), *packed))

        past, packed_id = fdb.tuple.pack((now - 1000.0,)), fdb.tuple.pack((id,))
        return self.random.choice(
            [
                (key("READY", fdb.tuple.pack((-9,)), _OLD_SEQ, packed_id), b""),
                (key("SCHEDULED", past, packed_id), fdb.tuple.pack((0,))),
                (key("ACTIVITY", _OLD_SEQ), packed_id),
                (key("EXPIRING", past, packed_id), b""),
                (key("READY", b"\xf0", packed_id), b"no such key"),
                (key("ACTIVITY", _OLD_SEQ[:1], MARK), b"no id"),
            ]
        )
