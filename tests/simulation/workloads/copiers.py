"""Copies of what the store holds at some moment into another one, which are stopped and gone on with, and compared.

The source is a store of the copy's own, so that the jobs stand still; the target is a cluster with the weather of the
run. What a copy must have is read from the rows' documented bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar, Final

import fdb.tuple

from jobs_service.copying import Batch, Copied, CopyRefused, Step, copy_jobs
from jobs_service.errors import JobTooLarge, StoreError, StoreUnavailable
from jobs_service.sources import Sources
from jobs_service.store.base import Store, Transaction
from jobs_service.store.memory import MemoryStore
from jobs_service.testing import EPOCH, Cluster, SimulatedStore
from tests.checker import complaints_about
from tests.simulation.client import Client
from tests.simulation.damage import is_damage
from tests.simulation.portraits import Portrait, Rows, differences, portrait
from tests.simulation.rows import PREFIX, section
from tests.simulation.workloads.base import Workload

_MOST_TRIES: Final = 60
_MANY: Final = 100
_STOPPED: Final = 0.3
_ALL_BYTES: Final = 100_000
_IN_PARTS: Final = 0.5
"""The share of runs with copies in which the two below are drawn."""

_WITH_TICK: Final = 0.7
"""The share of their copies in which a type has ticked some time ago."""

_MOST_BYTES: Final = (_ALL_BYTES, 1, 300, 2_000)
"""Bytes of records that one transaction of their copies holds."""

_OTHER: Final = "another process copies jobs"


class _Stopped(Exception):
    """Ends a copy on its way."""


class Copiers(Workload):
    """Copy, sometimes with force into a store that has an older copy; stop on the way, and go on."""

    name = "copiers"
    weight: ClassVar[int] = 3
    always: ClassVar[bool] = True

    def __init__(self, run: object) -> None:
        super().__init__(run)  # type: ignore[arg-type]
        self._older: Rows = {}
        self._copies = 0
        self._others = self.run.world.choices.stream("copies in parts")
        self._in_parts = self._others.random() < _IN_PARTS

    async def step(self, client: Client) -> None:
        rows, older = self._with_tick(self._rows()), self._older
        self._older = rows
        self._copies += 1
        found = portrait(rows)
        random = self.random
        over, force = bool(older) and random.random() < 0.4, random.random() < 0.6
        size, stops = random.choice([1, 2, 3, 250]), random.random() < 0.5
        running = [key for key, record in found.jobs.items() if record.state == "running"]
        seed = f"{self.run.world.choices.plan.seed}/copy {self._copies}"
        sources = Sources(seed, wall_time=client.process.clock.wall_time)
        source = MemoryStore(settings=client.process.settings, sources=sources)
        cluster = Cluster(self.run.world.loop, self.run.world.choices)
        cluster.latency = self.run.world.cluster.latency
        target = SimulatedStore(cluster, client.process, settings=client.process.settings, sources=sources)
        first = MemoryStore(settings=client.process.settings, sources=sources)
        for store in (source, first, target):
            await store.open()
        try:
            await _fill(source, rows)
            if over:
                await _fill(first, older)
                if (await self._whole(first, target, sources, True, 250, False))[0] is None:
                    return
            before = portrait(_content(cluster))
            force = force or over
            try:
                copied, is_unsure = await self._whole(source, target, sources, force, size, stops)
            except CopyRefused as refused:
                if force or not running or not refused.args[0]:
                    self.run.complain(f"copy: {client.process} was refused for no reason: {refused}")
                return
            except JobTooLarge:
                return
            if copied is None:
                return
            if running and not force:
                self.run.complain(f"copy: {running} were running, and were copied without force")
            versions = cluster.versions
            newest = (versions.version + 1).to_bytes(8, "big") + b"\x00\x00"
            content = _content(cluster)
            clock = EPOCH + self.run.world.loop.time() + self.run.latest_clock
            pairs = [(PREFIX + key, value) for key, value in sorted(content.items())]
            complaints = [
                *complaints_about(PREFIX, newest, clock, pairs),
                *differences(found, before, portrait(content)),
                *_counted(copied, found, before, is_unsure),
            ]
            how = "over another one" if over else "forced" if force else "unforced"
            for complaint in complaints:
                self.run.complain(f"copy: of {client.process}, {how}: {complaint}")
        finally:
            for store in (source, first, target):
                await store.close()

    def _rows(self) -> Rows:
        """Return what the jobs' rows are just now, without those that are damaged."""
        versions = self.run.world.cluster.versions
        version = versions.enter()
        pairs = [*versions.scan_at(version, PREFIX, PREFIX + b"\xff", False)]
        versions.leave(version)
        return {key[len(PREFIX) :]: value for key, value in pairs if not is_damage(key, value)}

    def _with_tick(self, rows: Rows) -> Rows:
        """Return rows, sometimes with one that says when a type of the run has ticked last, which may be any time."""
        if not self._in_parts or self._others.random() >= _WITH_TICK:
            return rows
        key = (section("PERIODIC") + fdb.tuple.pack((self.run.types[0],))).removeprefix(PREFIX)
        return {**rows, key: fdb.tuple.pack((EPOCH - self._others.choice([60.0, 120.0, 180.0]),))}

    async def _whole(
        self, source: Store, target: Store, sources: Sources, force: bool, size: int, stops: bool
    ) -> tuple[Copied | None, bool]:
        """Copy, again and again, until it is done; None if the store does not let it. And whether it is unsure when.

        It is where the outcome of a step was unknown: that may have been the last one.
        """
        random, is_unsure = self.random, False
        most = self._others.choice(_MOST_BYTES) if self._in_parts else _ALL_BYTES

        def progress(step: Step, done: int, total: int | None) -> None:
            if stops and step is Step.COPYING and random.random() < _STOPPED:
                raise _Stopped

        for _ in range(_MOST_TRIES):
            try:
                batch = Batch(jobs=size, bytes=most)
                copied = await copy_jobs(source, target, sources=sources, force=force, batch=batch, progress=progress)
                return copied, is_unsure
            except (_Stopped, StoreError) as error:
                is_unsure |= isinstance(error, StoreUnavailable)
                await asyncio.sleep(0.1)
            except CopyRefused as refused:
                # The first step of a try before may come late, and looks like another process's.
                if not is_unsure or _OTHER not in str(refused):
                    raise
        return None, is_unsure


async def _fill(store: MemoryStore, rows: Rows) -> None:
    """Have a store hold these rows."""
    prefix = await store.prefix()
    left = [*rows.items()]
    for begin in range(0, len(left), _MANY):

        async def write(transaction: Transaction, begin: int = begin) -> None:
            for key, value in left[begin : begin + _MANY]:
                transaction.set(prefix + key, value)

        await store.transact(write)


def _content(cluster: Cluster) -> Rows:
    versions = cluster.versions
    version = versions.enter()
    pairs = [*versions.scan_at(version, PREFIX, PREFIX + b"\xff", False)]
    versions.leave(version)
    return {key[len(PREFIX) :]: value for key, value in pairs}


def _counted(copied: Copied, source: Portrait, before: Portrait, is_unsure: bool) -> Iterator[str]:
    """Yield what a copy says that it has done, and has not.

    Args:
        is_unsure: whether its last step may have happened before, unknown to it: then it was done once more, and all
            jobs were there.
    """
    jobs = sum(counts.jobs for counts in copied.types)
    if jobs != len(source.jobs):
        yield f"it says that the source has {jobs} jobs, of {len(source.jobs)}"
    skipped = len(source.jobs.keys() & before.jobs.keys())
    if is_unsure and copied.skipped == jobs:
        return
    if copied.skipped != skipped and not copied.complete_before:
        yield f"it says that {copied.skipped} jobs were there, of {skipped}"
