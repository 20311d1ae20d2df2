"""A unit of work: the jobs that one transaction has touched, each written once, at its end. Floor: layer.

FoundationDB cannot read back, in the same transaction, a key or value that is to get a versionstamp. So operations
answer from what is remembered here, and `flush` writes every job's final state and index entry. Old index entries are
cleared at once: those may be read back, so that a queue never shows a job that this transaction has moved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import fdb.tuple

from jobs_service import notes
from jobs_service.errors import JobTooLarge, TransactionTooLarge, job_name
from jobs_service.layer.keyspace import STAMP_CODE, Keyspace, TypeKeys, pack_seconds, unpack_id
from jobs_service.layer.keyspace import Place as Place
from jobs_service.layer.record import LOCK_BYTES, READY, SCHEDULED, NewSeq, Record
from jobs_service.model import JobId, Outcome
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction

T = TypeVar("T")

_ONE = (1).to_bytes(8, "little")
_KEY_OVERHEAD: Final = 13
_MAX_ORDER: Final = 0xFFFF
_SHARE: Final = 4
"""One operation that takes many jobs fills at most one part in so many of a transaction."""


class Retention(NamedTuple):
    """How long finished jobs of a type are kept.

    Attributes:
        keep: seconds, of those that succeeded or were canceled; None for ever.
        keep_failed: seconds, of those that failed; None for ever.
    """

    keep: float | None
    keep_failed: float | None

    def seconds(self, outcome: Outcome) -> float | None:
        """Return how long a job that ended so is kept."""
        return self.keep_failed if outcome is Outcome.FAILED else self.keep

    def encode(self) -> bytes:
        """Return what the store keeps."""
        packed: bytes = fdb.tuple.pack(tuple(self))
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> Retention:
        """Return what `encode` encoded."""
        return cls(*fdb.tuple.unpack(packed))


FOR_EVER: Final = Retention(None, None)


class Seen(NamedTuple):
    """A job at one moment of a transaction.

    Attributes:
        keys, id: the job.
        record: None when there is none.
    """

    keys: TypeKeys
    id: JobId
    record: Record | None


class Entry:
    """One touched job: its place in the keyspace, whether the store has it, and its present record, None for none."""

    __slots__ = ("changed", "id", "keys", "packed_id", "record", "stored")

    def __init__(self, keys: TypeKeys, id: JobId, packed_id: bytes, raw: bytes | None) -> None:
        self.keys = keys
        self.id = id
        self.packed_id = packed_id
        self.stored = raw is not None
        self.record = None if raw is None else Record.decode(raw)
        self.changed = False

    def seen(self) -> Seen:
        """Return what the job is now: the entry itself goes on with the transaction."""
        return Seen(self.keys, self.id, self.record)


class Unit:
    """The jobs touched by one run of a transaction function.

    Args:
        transaction: the store's transaction.
        keyspace: where the keys are.
        sources: wall-clock time and randomness.
    """

    __slots__ = (
        "_active",
        "_ample_key",
        "_ample_value",
        "_limits",
        "_orders",
        "_taken_away",
        "_woken",
        "entries",
        "existing_types",
        "keyspace",
        "now",
        "retentions",
        "sources",
        "transaction",
    )

    def __init__(self, transaction: Transaction, keyspace: Keyspace, sources: Sources) -> None:
        self.transaction = transaction
        self.keyspace = keyspace
        self.sources = sources
        self.now = sources.wall_time()
        self.entries: dict[bytes, Entry] = {}
        # Types known to exist, as long as this transaction does not change types.
        self.existing_types: set[TypeKeys] = set()
        self._limits = transaction.limits
        # What is smaller than this is well within every limit, whatever its type and flags.
        self._ample_key = self._limits.key // 2
        self._ample_value = self._limits.value // 4
        self._orders = 0
        self._woken: dict[TypeKeys, None] = {}
        self._active: dict[TypeKeys, None] = {}
        self._taken_away: dict[TypeKeys, None] = {}
        # Those that are known already.
        self.retentions: dict[TypeKeys, Retention] = {}

    async def load(self, place: Place) -> Entry:
        """Return the job's entry, read from the store the first time."""
        keys, id, packed_id = place
        data_key = keys.data + packed_id
        entry = self.entries.get(data_key)
        if entry is None:
            raw = await self.transaction.get(data_key)
            entry = self.entries[data_key] = Entry(keys, id, packed_id, raw)
        return entry

    async def prefetch(self, jobs: Sequence[Place]) -> None:
        """Read jobs that are about to be touched; the reads go out together."""
        entries = self.entries
        missing = {data_key: job for job in jobs if (data_key := job[0].data + job[2]) not in entries}
        if missing:
            raws = await self.transaction.get_many([*missing])
            for (data_key, (keys, id, packed_id)), raw in zip(missing.items(), raws, strict=True):
                entries[data_key] = Entry(keys, id, packed_id, raw)

    def loaded(self, place: Place) -> Entry | None:
        """Return the job's entry if it was read already."""
        return self.entries.get(place[0].data + place[2])

    async def load_many(self, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
        """Return the jobs' entries in their order; the reads go out together."""
        await self.prefetch([(keys, unpack_id(packed_id), packed_id) for packed_id in packed_ids])
        entries = self.entries
        data = keys.data
        return [entries[data + packed_id] for packed_id in packed_ids]

    def new_locks(self, count: int) -> list[bytes]:
        """Return locks that nobody has had."""
        # One draw for all: the system's randomness has its price.
        drawn = self.sources.token(count * LOCK_BYTES)
        return [drawn[start : start + LOCK_BYTES] for start in range(0, len(drawn), LOCK_BYTES)]

    def new_seq(self) -> NewSeq:
        """Return the next seq of this transaction."""
        order = self._orders
        if order > _MAX_ORDER:
            raise TransactionTooLarge(f"a transaction that moves more than {_MAX_ORDER + 1} jobs; split it")
        self._orders = order + 1
        return NewSeq(self.transaction.stamp, order.to_bytes(2, "big"))

    def place_for(self, run_at: float | None) -> int:
        """Return where a job that is to run then waits."""
        return READY if run_at is None or run_at <= self.now else SCHEDULED

    def fitting(self, entries: list[Entry]) -> list[Entry]:
        """Return as many from the front, at least one, as can be rewritten beside what else a transaction may hold."""
        left = self._limits.transaction // _SHARE
        for position, entry in enumerate(entries):
            record = entry.record
            if record is not None:
                left -= record.size() + 3 * (len(entry.keys.ready) + len(entry.packed_id) + len(record.priority) + 32)
            if left < 0 and position:
                return entries[:position]
        return entries

    def create(self, entry: Entry, json: bytes, priority: bytes, run_at: float | None) -> None:
        """Make a job that does not exist be pending."""
        keys = entry.keys
        place = READY if run_at is None or run_at <= self.now else SCHEDULED
        told = notes.started_anew(b"", self.now)
        record = Record(None, place, self.new_seq(), priority, run_at, None, False, None, json, told)
        if len(keys.ready) + len(entry.packed_id) + len(priority) > self._ample_key or len(json) > self._ample_value:
            self._check_size(entry, record)
        entry.record = record
        entry.changed = True
        self._woken[keys] = None
        self._active[keys] = None

    def replace(self, entry: Entry, record: Record) -> None:
        """Make `record` the job's present state."""
        keys = entry.keys
        before = entry.record
        if (
            len(keys.ready) + len(entry.packed_id) + len(record.priority) > self._ample_key
            or len(record.json) + len(record.notes) > self._ample_value
            or record.next is not None
        ):
            self._check_size(entry, record)
        if before is None or before.seq is not record.seq:
            if before is not None:
                self._clear_index(entry, before)
            if record.place:
                self._woken[keys] = None
        entry.record = record
        entry.changed = True
        self._active[keys] = None

    def woke(self, keys: TypeKeys) -> bool:
        """Whether this transaction has made a job of the type pending: a watch that it sets does not fire for that."""
        return keys in self._woken

    def take_away(self, keys: TypeKeys) -> None:
        """Have it noticed at once that a running job of the type is its worker's no more, or is to end."""
        self._taken_away[keys] = None

    async def is_paused(self, keys: TypeKeys) -> bool:
        """Whether nobody is to accept jobs of the type; a conflict for who accepts when that changes meanwhile."""
        return await self.transaction.get(keys.paused) is not None

    def pause(self, keys: TypeKeys) -> None:
        """Have nobody accept jobs of the type."""
        self.transaction.set(keys.paused, b"")

    def resume(self, keys: TypeKeys) -> None:
        """Have jobs of the type accepted again, and wake those who wait for them."""
        self.transaction.clear(keys.paused)
        self._woken[keys] = None

    def set_retention(self, keys: TypeKeys, retention: Retention) -> None:
        """Say how long jobs of the type are kept that finish from now on."""
        self.retentions[keys] = retention
        self.transaction.set(keys.retention, retention.encode())

    async def retention(self, keys: TypeKeys) -> Retention:
        """Return how long finished jobs of the type are kept."""
        retention = self.retentions.get(keys)
        if retention is None:
            # A snapshot read: whoever changes it is in no hurry.
            packed = await self.transaction.snapshot.get(keys.retention)
            retention = self.retentions[keys] = FOR_EVER if packed is None else Retention.decode(packed)
        return retention

    def remove(self, entry: Entry) -> None:
        """Make the job be gone."""
        if entry.record is not None:
            self._clear_index(entry, entry.record)
        entry.record = None
        entry.changed = True
        self._active[entry.keys] = None

    def flush(self) -> None:
        """Write the final state of every job that was changed."""
        transaction = self.transaction
        values: list[tuple[bytes, bytes, bytes]] = []
        index: list[tuple[bytes, bytes, bytes]] = []
        for data_key, entry in self.entries.items():
            record = entry.record
            if not entry.changed or (record is None and not entry.stored):
                continue
            if record is None:
                transaction.clear(data_key)
                continue
            seq = record.seq
            if seq.__class__ is bytes:
                transaction.set(data_key, record.encode())
                continue
            assert isinstance(seq, NewSeq)
            before, after = record.around_stamp()
            values.append((data_key, before, after))
            if record.lock is not None:
                index.append((entry.keys.activity_head, seq.order, entry.packed_id))
            elif record.place == READY:
                run_at = b"" if record.run_at is None else pack_seconds(record.run_at)
                index.append((entry.keys.ready + record.priority + STAMP_CODE, seq.order + entry.packed_id, run_at))
            elif record.place == SCHEDULED:
                transaction.set(scheduled_key(entry, record), record.priority)
            elif (expires := notes.expires_at(record.notes)) is not None:
                transaction.set(entry.keys.expiring + pack_seconds(expires) + entry.packed_id, b"")
        for keys in self._woken:
            transaction.add(keys.watch_pending, _ONE)
        for keys in self._taken_away:
            transaction.add(keys.watch_canceled, _ONE)
        for keys in self._active:
            values.append((keys.watch_activity, b"", b""))
        if values:
            transaction.stamp_all(values, index)

    def _clear_index(self, entry: Entry, record: Record) -> None:
        keys = entry.keys
        if record.place == SCHEDULED:
            self.transaction.clear(scheduled_key(entry, record))
        elif record.seq.__class__ is not bytes:
            return  # Its entry would have been written by flush.
        elif record.lock is not None:
            self.transaction.clear(keys.activity_head + record.seq)
        elif record.place == READY:
            self.transaction.clear(ready_key(entry, record))
        elif (expires := notes.expires_at(record.notes)) is not None:
            self.transaction.clear(entry.keys.expiring + pack_seconds(expires) + entry.packed_id)

    def _check_size(self, entry: Entry, record: Record) -> None:
        limits = self._limits
        record.fit(limits.value)
        size = record.size()
        if size > limits.value:
            raise JobTooLarge(
                f"job {job_name(entry.keys.type, entry.id)}: its record takes {size} bytes; the store's limit is "
                f"{limits.value}",
                type=entry.keys.type,
                id=entry.id,
            )
        longest = max(len(record.priority), 0 if record.next is None else len(record.next[0]))
        size = len(entry.keys.ready) + len(entry.packed_id) + longest + _KEY_OVERHEAD
        if size > limits.key:
            raise JobTooLarge(
                f"job {job_name(entry.keys.type, entry.id)}: type, priority and id make a key of {size} bytes; "
                f"the store's limit is {limits.key}",
                type=entry.keys.type,
                id=entry.id,
            )


def ready_key(entry: Entry, record: Record) -> bytes:
    """Return the READY key that the record points at."""
    assert isinstance(record.seq, bytes)
    return entry.keys.ready + record.priority + STAMP_CODE + record.seq + entry.packed_id


def scheduled_key(entry: Entry, record: Record) -> bytes:
    """Return the SCHEDULED key that the record points at."""
    assert record.run_at is not None
    return entry.keys.scheduled + pack_seconds(record.run_at) + entry.packed_id


async def run(
    transaction: Transaction, keyspace: Keyspace, sources: Sources, function: Callable[[Unit], Awaitable[T]]
) -> T:
    """Run a function on a unit of work and write what it leaves.

    Args:
        transaction: the store's transaction of this run.
        keyspace: where the keys are.
        sources: wall-clock time and randomness.
        function: the operations.
    """
    unit = Unit(transaction, keyspace, sources)
    result = await function(unit)
    unit.flush()
    return result
