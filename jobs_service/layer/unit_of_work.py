"""A unit of work: the jobs that one transaction has touched, each written once, at its end.

FoundationDB cannot read back, in the same transaction, a key or value that is to get a versionstamp. So operations
answer from the state kept here, and `flush` writes every job's final state and index entry. Old index entries are
cleared at once: those may be read back, so that a queue never shows a job that this transaction has moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import ClassVar, Final, TypeVar

from jobs_service import run_data
from jobs_service.errors import RecordDamaged, StoreFull
from jobs_service.layer import counters
from jobs_service.layer.batch_bounds import SHARE
from jobs_service.layer.counters import ADDED, AFTER_CRASH, IS_READY, IS_RUNNING, OF_OUTCOME, lane_of
from jobs_service.layer.entry import Entry, JobSnapshot, clear_index, scheduled_key, write_index
from jobs_service.layer.key_parts import STAMP_CODE, pack_seconds
from jobs_service.layer.keyspace import Keyspace, TypeKeys
from jobs_service.layer.keyspace import Place as Place
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import LOCK_BYTES, READY, SCHEDULED
from jobs_service.layer.record_limits import check_size
from jobs_service.layer.touched_types import TouchedTypes
from jobs_service.model import Outcome
from jobs_service.sources import Sources
from jobs_service.store.base import OFFSET_BYTES, Transaction
from jobs_service.tracing import Trace

T = TypeVar("T")

_ONE = (1).to_bytes(8, "little")
_ADDED_BYTES: Final = 300
"""Approximate bytes that a new job takes in a store beside its data and keys."""
_CLAIMED_AT_ONCE: Final = 100_000


class UnitOfWork(TouchedTypes):
    """The jobs touched by one run of a transaction function.

    Args:
        transaction: the store's transaction.
        keyspace: of the keys.
        sources: wall-clock time and randomness.
        instance: id of the store's instance, with which the locks of accepted jobs begin.
    """

    sweeps: ClassVar[bool] = True
    """Whether its transaction accepts the removal of ranges."""

    __slots__ = (
        "_adds",
        "_ample_key",
        "_ample_value",
        "_claimed",
        "_journal",
        "_new_run_data",
        "_size",
        "existing_types",
        "has_application",
        "instance",
        "now",
        "trace",
    )

    def __init__(self, transaction: Transaction, keyspace: Keyspace, sources: Sources, instance: bytes = b"") -> None:
        self.transaction = transaction
        self.keyspace = keyspace
        self.sources = sources
        self.instance = instance
        self.now = sources.wall_time()
        # Trace context for jobs that bring none of their own.
        self.trace: Trace | None = None
        self.entries = {}
        # Jobs whose records were read but cannot be decoded: they are not among the entries.
        self.damaged = {}
        self._set_aside = {}
        self._recounted = []
        self._left = {}
        # Here and below dictionaries use one of a type's keys, not its TypeKeys: Python keeps the hash of bytes, while
        # TypeKeys would cost a call of __hash__ each time.
        # Timeouts of types known to exist, as long as this transaction does not change types.
        self.existing_types: set[bytes] = set()
        self._limits = limits = transaction.limits
        # Keys and records smaller than these are well within every limit: no need to compute exact sizes.
        self._ample_key = min(limits.key // 2, limits.value // 8)
        self._ample_value = limits.value // 4
        self._orders = 0
        # The state before each change, inside of `all_or_nothing`.
        self._journal: list[tuple[Entry, Record | None, bool]] | None = None
        # Events of jobs, by type; and the type of the latest event.
        self._tallies = {}
        self._tallied = None
        self._adds = False
        # Bytes that may be added without asking the store.
        self._claimed = 0
        self._new_run_data = run_data.started_anew(b"", self.now)
        # Whether the application may write keys of its own in this transaction.
        self.has_application = False
        # Bytes of the records that were read, and of those that will be written.
        self._read = 0
        self._size = 0
        self._most_written = limits.transaction // SHARE
        self.is_full = False
        self._woken = {}
        self._active = {}
        self._taken_away = {}
        # Types known to be awake, and from when on monitors must watch over jobs of this transaction.
        self._awake = set()
        self._watched = {}
        # Whether notifiers follow the types of the jobs that were read, and whether they follow any of them.
        self._followed = {}
        self._is_followed = False
        # Retentions that were read already.
        self.retentions = {}

    def new_locks(self, count: int, is_elsewhere: bool = False) -> list[bytes]:
        """Return new, random locks.

        Args:
            count: of them.
            is_elsewhere: whether their worker is outside this process; then they do not name the instance.
        """
        # One draw for all: each is a system call.
        drawn = self.sources.token(count * LOCK_BYTES)
        head = b"" if is_elsewhere else self.instance
        rest = LOCK_BYTES - len(head)
        return [head + drawn[start : start + rest] for start in range(0, len(drawn), LOCK_BYTES)]

    def place_for(self, run_at: float | None) -> int:
        """Return READY or SCHEDULED: the waiting place of a job that is due at `run_at`."""
        return READY if run_at is None or run_at <= self.now else SCHEDULED

    def create(
        self, entry: Entry, json: bytes, priority: bytes, run_at: float | None, limits: bytes | None = None
    ) -> None:
        """Create a pending job."""
        keys = entry.keys
        place = READY if run_at is None or run_at <= self.now else SCHEDULED
        packed = (
            self._new_run_data if limits is None else run_data.with_part(self._new_run_data, run_data.LIMITS, limits)
        )
        record = Record(None, place, self.new_seq(), priority, run_at, None, False, None, json, packed)
        key_size = keys.ready_bytes + len(entry.packed_id)
        if key_size + len(priority) > self._ample_key or len(json) > self._ample_value:
            check_size(self._limits, entry, record)
        # About the bytes that FoundationDB counts: the id is in the key of the record, of the index entry and of a
        # conflict range. It is cheaper than an exact sum, and the bounds leave room.
        size = 3 * key_size + len(json)
        left = self._claimed - size - _ADDED_BYTES
        self._claimed = left if left >= 0 else self._claim_room(size + _ADDED_BYTES)
        self._adds = True
        if self._journal is not None:
            self._journal.append((entry, entry.record, entry.changed))
        entry.record = record
        entry.changed = True
        size = self._size = self._size + size
        if size > self._most_written:
            self.is_full = True
        if run_at is not None and place == SCHEDULED:
            self._watch_over_from(keys, run_at)
        tally = self._tally if keys is self._tallied else self.tally(keys)
        tally[ADDED] += 1
        data = keys.data
        self._woken[data] = keys
        self._active[data] = keys

    def _claim_room(self, size: int) -> int:
        """Claim room in the store for a new job. It claims for many jobs at once, since each claim costs time.

        Returns:
            The bytes that may be added beyond these without another claim.
        """
        try:
            self.transaction.claim_room(size + _CLAIMED_AT_ONCE)
        except StoreFull:
            self.transaction.claim_room(size)
            return 0
        return _CLAIMED_AT_ONCE

    def take_over(self, entry: Entry, record: Record) -> None:
        """Create a job as it was in another store, with its history if there is room for it."""
        if record.encoded_size() > self._limits.value - OFFSET_BYTES:
            record.fit(self._limits.value - OFFSET_BYTES)
        keys = entry.keys
        entry.record = record
        entry.changed = True
        self._size += 3 * (len(keys.ready) + len(entry.packed_id) + len(record.priority)) + record.encoded_size()
        self._look_whether_full()
        self._active[keys.data] = keys
        if record.place:
            self._woken[keys.data] = keys
        self.watch_over(keys, record)

    def replace(self, entry: Entry, record: Record) -> None:
        """Make `record` the job's present state."""
        keys = entry.keys
        before = entry.record
        key_size = keys.ready_bytes + len(entry.packed_id) + len(record.priority)
        value_size = len(record.json) + len(record.run_data)
        if key_size > self._ample_key or value_size > self._ample_value or record.next is not None:
            check_size(self._limits, entry, record)
        if self._journal is not None:
            self._journal.append((entry, before, entry.changed))
        size = self._size = self._size + 3 * key_size + value_size
        if size > self._most_written:
            self.is_full = True
        data = keys.data
        if before is None:
            if record.place:
                self._woken[data] = keys
            self.watch_over(keys, record)
        else:
            if before.seq is not record.seq:
                clear_index(self.transaction, entry, before)
                if record.place:
                    self._woken[data] = keys
            # Nearly always a job of an awake type is accepted: then there is nothing to do.
            if before.lock is None and (record.lock is None or keys.awake not in self._awake):
                self.watch_over(keys, record)
        entry.record = record
        entry.changed = True
        self._active[data] = keys

    def _look_whether_full(self) -> None:
        self.is_full = self._size > self._most_written or self._read > self._limits.transaction

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo all changes of jobs if the block raises."""
        outer, own = self._journal, list[tuple[Entry, Record | None, bool]]()
        woken, active, size = self._woken.copy(), self._active.copy(), self._size
        watched, adds = self._watched.copy(), self._adds
        tallies = {keys: tally.copy() for keys, tally in self._tallies.items()}
        left = self._left.copy()
        self._journal = own
        try:
            yield
        except BaseException:
            for entry, record, changed in reversed(own):
                self._restore(entry, record, changed)
            self._woken, self._active, self._size = woken, active, size
            self._look_whether_full()
            self._watched, self._adds = watched, adds
            self._tallies, self._left = tallies, left
            self._tallied = None
            own.clear()
            raise
        finally:
            self._journal = outer
            if outer is not None:
                outer += own

    def _restore(self, entry: Entry, record: Record | None, changed: bool) -> None:
        """Undo one change of a job."""
        present = entry.record
        entry.record, entry.changed = record, changed
        # The change has cleared the index entry of the state before, if the store had one: only a seq of bytes is from
        # the store, a NewSeq is of this transaction and has no entry yet.
        if record is not None and (present is None or present.seq is not record.seq) and type(record.seq) is bytes:
            write_index(self.transaction, entry, record)

    def remove(self, entry: Entry) -> None:
        """Remove the job."""
        if self._journal is not None:
            self._journal.append((entry, entry.record, entry.changed))
        if entry.record is not None:
            clear_index(self.transaction, entry, entry.record)
            # A removal writes no record, but its keys.
            self._size += 3 * (entry.keys.ready_bytes + len(entry.packed_id) + len(entry.record.priority))
            self._look_whether_full()
        entry.record = None
        entry.changed = True
        self._active[entry.keys.data] = entry.keys
        self._left.pop(entry, None)

    def leave(self, entry: Entry, record: Record) -> JobSnapshot:
        """Remove the job at its end, and tell the type's followers of `record`. Return the job with that record."""
        self.replace(entry, record)
        self.remove(entry)
        self._left[entry] = record
        return JobSnapshot(entry.keys, entry.id, record)

    def flush(self) -> None:
        """Write the final state of every job that was changed."""
        transaction = self.transaction
        values: list[tuple[bytes, bytes, bytes]] = []
        index: list[tuple[bytes, bytes, bytes]] = []
        states: dict[TypeKeys, list[int]] = {}
        latest: TypeKeys | None = None
        new = self._new_run_data
        for data_key, entry in self.entries.items():
            if not entry.changed:
                continue
            keys = entry.keys
            record = entry.record
            if record is None:
                if self._is_followed and self._followed.get(keys.followed):
                    # Also where this unit has added it: another one of this transaction may have had it leave before.
                    self._write_last(entry, values)
                if not entry.stored:
                    continue
            if keys is not latest:  # those of one type come together
                latest = keys
                lanes = states.get(keys) or states.setdefault(keys, counters.new_states())
            counted = entry.counted
            was_retrying = False
            if counted is not None:
                lane = IS_RUNNING if counted.lock is not None else lane_of(counted)
                lanes[lane] -= 1
                was_retrying = lane >= AFTER_CRASH
            if record is None:
                transaction.clear(data_key)
                if was_retrying:
                    transaction.clear(keys.retrying + entry.packed_id)
                continue
            # As lane_of says, which nearly all jobs are spared.
            is_new = record.run_data is new and record.place == READY
            if record.outcome is not None:
                lane = OF_OUTCOME[record.outcome]
            else:
                lane = IS_RUNNING if record.lock is not None else IS_READY if is_new else lane_of(record)
            lanes[lane] += 1
            if lane >= AFTER_CRASH:
                if not was_retrying:
                    transaction.set(keys.retrying + entry.packed_id, b"")
            elif was_retrying:
                transaction.clear(keys.retrying + entry.packed_id)
            seq = record.seq
            if isinstance(seq, bytes):  # only flags were changed: its place in the indexes is as before
                transaction.set(data_key, record.encode())
                continue
            before, after = record.around_stamp()
            values.append((data_key, before, after))
            if record.lock is not None:
                index.append((keys.activity_head, seq.order, entry.packed_id))
            elif record.place == READY:
                run_at = b"" if record.run_at is None else pack_seconds(record.run_at)
                index.append((keys.ready + record.priority + STAMP_CODE, seq.order + entry.packed_id, run_at))
            elif record.place == SCHEDULED:
                transaction.set(scheduled_key(entry, record), record.priority)
            else:
                if record.outcome is Outcome.FAILED:
                    index.append((keys.failed_head, seq.order, entry.packed_id))
                if (expires := run_data.expires_at(record.run_data)) is not None:
                    transaction.set(keys.expiring + pack_seconds(expires) + entry.packed_id, b"")
        for keys, lane, count in self._recounted:
            (states.get(keys) or states.setdefault(keys, counters.new_states()))[lane] += count
        if states or self._tallies:
            counters.write(transaction, states, self._tallies, self.now, sweeps=self.sweeps)
        if self._is_followed:
            index += self._changes()
        for keys in self._woken.values():
            transaction.add(keys.watch_pending, _ONE)
        for keys in self._taken_away:
            transaction.add(keys.watch_canceled, _ONE)
        for keys in self._active.values():
            values.append((keys.watch_activity, b"", b""))
        if values:
            transaction.stamp_all(values, index)
        # On a full store, transactions that take, end or remove jobs must still go through: they use the reserve.
        if not self._adds and (values or not self.has_application):
            transaction.use_reserve()


async def run(
    transaction: Transaction,
    keyspace: Keyspace,
    sources: Sources,
    function: Callable[[UnitOfWork], Awaitable[T]],
    instance: bytes = b"",
    damaged: Callable[[Iterable[RecordDamaged]], object] | None = None,
) -> T:
    """Run a function on a unit of work, then write the jobs that it has changed.

    Args:
        transaction: the store's transaction of this run.
        keyspace: of the keys.
        sources: wall-clock time and randomness.
        function: the operations.
        instance: of the store.
        damaged: called with the errors of unreadable records, if there were any, on the function's thread.
    """
    unit = UnitOfWork(transaction, keyspace, sources, instance)
    try:
        result = await function(unit)
        if unit.has_watched:
            await unit.settle()
    finally:
        if unit.damaged and damaged is not None:
            damaged(unit.damaged.values())
    unit.flush()
    return result
