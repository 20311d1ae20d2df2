"""Processes of an earlier version: they leave records in the format before this one, which nobody has counted yet.

docs/layout.md describes them: the same bytes behind the version, no place in the counts, no row of failed jobs. Whoever
changes such a job counts it, and the conversion counts all of them.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar, Final

import fdb.tuple

from jobs_service import JobType, StoreError
from jobs_service.layer import conversion
from jobs_service.store.base import Transaction
from tests import reader
from tests.reader import Record
from tests.simulation.client import Client
from tests.simulation.damage import DAMAGED
from tests.simulation.rows import data_key, section
from tests.simulation.workloads.base import Workload

_NEW: Final = b"\x03"
_OLD: Final = b"\x02"
_VERSIONSTAMP: Final = b"\x33"
"""The tuple layer's code for one."""

_LANES: Final = ("ready", "scheduled", "running", "succeeded", "failed", "canceled")
_AFTER_CRASH: Final = 6
_LANE_BITS: Final = 64
_COUNTS_BYTES: Final = 664
_CONVERTED: Final = 0.25


class Elders(Workload):
    """Have some job be as an earlier version has left it; now and then, convert all that are."""

    name = "elders"
    weight: ClassVar[int] = 4
    always: ClassVar[bool] = True

    async def step(self, client: Client) -> None:
        jobs = client.jobs
        with contextlib.suppress(StoreError):
            if self.random.random() < _CONVERTED:
                await conversion.convert(jobs.store, jobs._context.keyspace, client.process.sources)
                return
            known = [key for key in self.run.history.known() if not str(key[1]).startswith(DAMAGED)]
            for type, id in self.random.sample(known, min(len(known), self.random.choice([1, 3, 10]))):
                key = data_key(type, id)
                self.run.history.aged.add(key)

                async def make_old(transaction: Transaction, type: JobType = type, key: bytes = key) -> None:
                    await _make_old(transaction, type, key)

                await jobs.store.transact(make_old)


async def _make_old(transaction: Transaction, type: JobType, key: bytes) -> None:
    """Write a job's record as the version before, which counts none."""
    raw = await transaction.get(key)
    if raw is None or raw[:1] != _NEW:
        return
    record = reader.record(raw)
    packed: bytes = fdb.tuple.pack((type,))
    transaction.set(key, _OLD + raw[1:])
    transaction.add(section("COUNTS") + packed, _one_less(_lane(record)))
    if record.outcome == "failed":
        transaction.clear(section("FAILED") + packed + _VERSIONSTAMP + record.seq)


def _lane(record: Record) -> int:
    """Return the number of the lane in which a job counts."""
    lane = _LANES.index(record.outcome or record.state)
    history = record.notes.history
    has_crashed = lane < 2 and bool(history) and history[0].kind == "crashed"
    return lane + _AFTER_CRASH if has_crashed else lane


def _one_less(lane: int) -> bytes:
    return (-1 << _LANE_BITS * lane).to_bytes(_COUNTS_BYTES, "little", signed=True)
