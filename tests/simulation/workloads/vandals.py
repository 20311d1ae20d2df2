"""Damage: records that cannot be read, at the very places where services look first. All other jobs must not notice.

The damaged jobs are no part of the history: their ids begin with a mark, by which everybody else leaves them out.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar, Final

from jobs_service import JobNotFound, JobsError, RecordDamaged, StoreError
from jobs_service.layer.keyspace import STAMP_CODE, Keyspace, TypeKeys, pack_id, pack_priority, pack_seconds
from jobs_service.store.base import Transaction
from tests.simulation.client import Client
from tests.simulation.damage import DAMAGED, MARK
from tests.simulation.rows import PREFIX
from tests.simulation.workloads.base import Workload

_OLD_SEQ: Final = bytes(11) + b"\x01"
_RECORDS: Final = (
    b"",
    b"\x02",
    b"\x02" + b"\xff" * 80,
    b"\x09" + bytes(60),
    b"no record at all, but longer than the fixed part of one is",
)


class Vandals(Workload):
    """Leave a record that cannot be read in an index, in front of all others; ask for it; perhaps remove it."""

    name = "vandals"
    weight: ClassVar[int] = 3

    def __init__(self, run: object) -> None:
        super().__init__(run)  # type: ignore[arg-type]
        self._keyspace = Keyspace(PREFIX)
        self._count = 0

    async def step(self, client: Client) -> None:
        type, id = self.some_type(), f"{DAMAGED}{self._count}"
        self._count += 1
        keys = self._keyspace.of(type)
        key, value = self._index_entry(keys, pack_id(id), client.process.clock.wall_time())
        record = self.random.choice(_RECORDS)

        async def plant(transaction: Transaction) -> None:
            transaction.set(keys.data + pack_id(id), record)
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

    def _index_entry(self, keys: TypeKeys, packed_id: bytes, now: float) -> tuple[bytes, bytes]:
        """Return the key and value of an index entry that comes before those of others."""
        past = pack_seconds(now - 1000.0)
        return self.random.choice(
            [
                (keys.ready + pack_priority(-9) + STAMP_CODE + _OLD_SEQ + packed_id, b""),
                (keys.scheduled + past + packed_id, pack_priority(0)),
                (keys.activity + STAMP_CODE + _OLD_SEQ, packed_id),
                (keys.expiring + past + packed_id, b""),
                (keys.ready + b"\xf0" + packed_id, b"no such key"),
                (keys.activity_head + MARK, b"no id"),
            ]
        )
