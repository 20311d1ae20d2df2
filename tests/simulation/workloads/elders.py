"""Processes of an earlier version: they leave records in the format before this one, which nobody has counted yet.

docs/layout.md describes them: the same bytes behind the version, no place in the counts, no row of failed jobs. Whoever
changes such a job counts it, and the conversion counts all of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import fdb.tuple

from jobs_service import JobType, StoreError
from jobs_service.layer import conversion
from jobs_service.store.base import Transaction
from jobs_service.store.fdb.conversion import ConvertibleDirectory
from jobs_service.store.fdb.directory import FORMAT, FORMAT_KEY
from jobs_service.testing import Process
from jobs_service.testing.cluster.client import SimulatedStore
from jobs_service.testing.cluster.cluster import Cluster
from tests import reader
from tests.reader import Record
from tests.simulation.client import Client
from tests.simulation.damage import DAMAGED
from tests.simulation.rows import PREFIX, data_key, section
from tests.simulation.workloads.base import Workload

if TYPE_CHECKING:
    from tests.simulation.run import Run

_NEW: Final = b"\x03"
_OLD: Final = b"\x02"
_VERSIONSTAMP: Final = b"\x33"
"""The tuple layer's code for one."""

_LANES: Final = ("ready", "scheduled", "running", "succeeded", "failed", "canceled")
_AFTER_CRASH: Final = 6
_LANE_BITS: Final = 64
_COUNTS_BYTES: Final = 664
_CONVERTED: Final = 0.25
_MARKED: Final = 0.15


class Elders(Workload):
    """Have some job be as an earlier version has left it; now and then, convert all that are.

    On a cluster whoever opens the store converts them, once it says that it has the format of that version.
    """

    name = "elders"
    weight: ClassVar[int] = 4
    always: ClassVar[bool] = True

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.conversions = Conversions(run)

    def equip(self, process: Process) -> None:
        if self.run.machine is None:
            process.store = _Directory(self.conversions, process, self.run.world.cluster)

    async def step(self, client: Client) -> None:
        jobs, conversions = client.jobs, self.conversions
        with contextlib.suppress(StoreError):
            if self.random.random() < _CONVERTED:
                with conversions.one_of(client.process):
                    await conversion.convert(jobs.store, jobs._context.keyspace, client.process.sources)
                return
            known = [key for key in self.run.history.known() if not str(key[1]).startswith(DAMAGED)]
            for type, id in self.random.sample(known, min(len(known), self.random.choice([1, 3, 10]))):
                key = data_key(type, id)
                self.run.history.aged.add(key)

                async def make_old(transaction: Transaction, type: JobType = type, key: bytes = key) -> None:
                    await _make_old(transaction, type, key)

                with conversions.making_old(key):
                    await jobs.store.transact(make_old)
            if self.run.machine is None and self.random.random() < _MARKED:
                await jobs.store.transact(_mark_as_old)


class _Conversion(NamedTuple):
    """One that has begun.

    Attributes:
        process: that has begun it.
        due: the keys of the jobs that it must count.
    """

    process: Process
    due: set[bytes]


class Conversions:
    """Which jobs a conversion must count: those that were old before it began, if none was under way just then.

    A conversion that was cut short is gone on with where it stopped: what was made old behind it is left.

    Args:
        run: of the elders.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._old = set[bytes]()
        self._being_made = Counter[bytes]()
        self._under_way: list[_Conversion] = []
        self._was_cut_short = False
        self._begun = 0

    def begin(self, process: Process) -> _Conversion:
        """Note that a process begins one."""
        begun = _Conversion(process, self._old)
        self._old = set()
        self._under_way.append(begun)
        self._begun += 1
        return begun

    def end(self, begun: _Conversion) -> None:
        """Note that one has come to its end."""
        self._was_cut_short = False
        self._under_way = [each for each in self._under_way if each is not begun and each.process.alive]
        versions = self._run.world.cluster.versions
        left = [key for key in begun.due if (versions.get(key) or _NEW)[:1] == _OLD]
        if left:
            self._run.complain(f"conversion: it has ended, and the jobs {left} are not counted")

    def cut_short(self, begun: _Conversion) -> None:
        """Note that one has failed."""
        self._under_way = [each for each in self._under_way if each is not begun]
        self._was_cut_short = True

    @contextlib.contextmanager
    def one_of(self, process: Process) -> Iterator[None]:
        """Note one that begins and ends here."""
        begun = self.begin(process)
        try:
            yield
        except BaseException:
            self.cut_short(begun)
            raise
        self.end(begun)

    @contextlib.contextmanager
    def making_old(self, key: bytes) -> Iterator[None]:
        """Note that a job is made old here; until that is sure, nothing is said of it."""
        for due in (self._old, *(each.due for each in self._under_way)):
            due.discard(key)
        before = self._begun
        self._being_made[key] += 1
        yield
        self._being_made[key] -= 1  # not if it has failed: it may take effect yet
        # Whoever else makes it old may do so behind a conversion that begins now.
        is_sure = not self._being_made[key]
        if is_sure and before == self._begun and not self._under_way and not self._was_cut_short:
            self._old.add(key)


class _Directory(ConvertibleDirectory, SimulatedStore):
    """A connection to a cluster that may have the format of an earlier version; who opens it converts its jobs.

    Args:
        conversions: of the run.
        process: whose it is.
        cluster: that it is connected to.
    """

    converts_when_opened = True

    def __init__(self, conversions: Conversions, process: Process, cluster: Cluster) -> None:
        super().__init__(cluster, process, settings=process.settings, sources=process.sources, context=process.context)
        self._conversions = conversions
        self._process = process
        self._begun: _Conversion | None = None

    async def begin_conversion(self) -> None:
        self._begun = self._conversions.begin(self._process)
        await super().begin_conversion()

    async def end_conversion(self) -> None:
        await super().end_conversion()
        begun, self._begun = self._begun, None
        if begun is not None:
            self._conversions.end(begun)

    async def close(self) -> None:
        await super().close()
        begun, self._begun = self._begun, None
        if begun is not None:
            self._conversions.cut_short(begun)


async def _mark_as_old(transaction: Transaction) -> None:
    """Have the store say that an earlier version has made it."""
    transaction.set(PREFIX + FORMAT_KEY, b"%d" % (FORMAT - 1))


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
    transaction.clear(section("RETRYING") + key.removeprefix(section("DATA")))


def _lane(record: Record) -> int:
    """Return the number of the lane in which a job counts."""
    lane = _LANES.index(record.outcome or record.state)
    history = record.notes.history
    has_crashed = lane < 2 and bool(history) and history[0].kind == "crashed"
    return lane + _AFTER_CRASH if has_crashed else lane


def _one_less(lane: int) -> bytes:
    return (-1 << _LANE_BITS * lane).to_bytes(_COUNTS_BYTES, "little", signed=True)
