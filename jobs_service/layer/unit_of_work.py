"""A unit of work: the jobs that one transaction has touched, each written once, at its end.

FoundationDB cannot read back, in the same transaction, a key or value that is to get a versionstamp. So operations
answer from the state kept here, and `flush` writes every job's final state and index entry. Old index entries are
cleared at once: those may be read back, so that a queue never shows a job that this transaction has moved.

The module has more than 600 lines because all of it is one class: a unit is made for each transaction, and every
operation on a job passes here, so that calls between objects would cost more than the work.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypeVar

from jobs_service import run_data
from jobs_service.errors import NoTypeTimeout, RecordDamaged, StoreFull, TransactionTooLarge
from jobs_service.layer import awake_types, changes, counters
from jobs_service.layer.batch_bounds import SHARE, Room
from jobs_service.layer.counters import (
    ADDED,
    AFTER_CRASH,
    IS_READY,
    IS_RUNNING,
    IS_UNCOUNTED,
    OF_OUTCOME,
    Tally,
    lane_of,
    lane_of_damaged,
    new_tally,
)
from jobs_service.layer.keyspace import STAMP_CODE, Keyspace, Place, TypeKeys, is_id, pack_seconds, unpack_id
from jobs_service.layer.record import (
    LOCK_BYTES,
    READY,
    SCHEDULED,
    Entry,
    JobSnapshot,
    NewSeq,
    Record,
    check_size,
    clear_index,
    most_rewritten_bytes,
    rewritten_bytes,
    scheduled_key,
    write_index,
)
from jobs_service.model import Outcome
from jobs_service.model.type_state import FOR_EVER, Retention
from jobs_service.run_data import NEWEST
from jobs_service.sources import Sources
from jobs_service.store.base import OFFSET_BYTES, ONE, Transaction
from jobs_service.tracing import Trace

T = TypeVar("T")

_PAGE_GROWTH: Final = 4
_MAX_ORDER: Final = 0xFFFF
_ADDED_BYTES: Final = 300
"""Approximate bytes that a new job takes in a store beside its data and keys."""
_CLAIMED_AT_ONCE: Final = 100_000


class UnitOfWork:
    """The jobs touched by one run of a transaction function.

    Args:
        transaction: the store's transaction.
        keyspace: of the keys.
        sources: wall-clock time and randomness.
        instance: id of the store's instance, with which the locks of accepted jobs begin.

    Attributes:
        transaction, keyspace, sources, instance: as given.
        now: seconds since the epoch.
        trace, context: the caller's trace and context, for new jobs that bring none of their own.
        has_application: whether the application may write keys of its own in this transaction.
        entries: the jobs by their DATA keys, each read once.
        damaged: jobs whose records were read but cannot be decoded: they are not among the entries.
        is_full: whether so much was read or rewritten that further operations should go into another transaction.
        existing_types: the ACTIVITY_TIMEOUT keys of types that are known to exist.
        retentions: of finished jobs, by their type's RETENTION key, as far as they were read.
    """

    __slots__ = (
        "_active",
        "_adds",
        "_ample_key",
        "_ample_value",
        "_awake",
        "_claimed",
        "_followed",
        "_is_followed",
        "_journal",
        "_left",
        "_limits",
        "_most_written",
        "_new_run_data",
        "_orders",
        "_read",
        "_recounted",
        "_set_aside",
        "_size",
        "_taken_away",
        "_tallied",
        "_tallies",
        "_tally",
        "_watched",
        "_woken",
        "context",
        "damaged",
        "entries",
        "existing_types",
        "has_application",
        "instance",
        "is_full",
        "keyspace",
        "now",
        "retentions",
        "sources",
        "trace",
        "transaction",
    )

    sweeps: ClassVar[bool] = True
    """Whether old rows of counts may be removed as well, which clears ranges: not in a block of `within`."""

    def __init__(self, transaction: Transaction, keyspace: Keyspace, sources: Sources, instance: bytes = b"") -> None:
        self.transaction = transaction
        self.keyspace = keyspace
        self.sources = sources
        self.instance = instance
        self.now = sources.wall_time()
        self.trace: Trace | None = None
        self.context: Mapping[str, str] | None = None
        self.has_application = False
        self._limits = limits = transaction.limits
        # Keys and records smaller than these are well within every limit: no need to compute exact sizes.
        self._ample_key = min(limits.key // 2, limits.value // 8)
        self._ample_value = limits.value // 4

        self.entries: dict[bytes, Entry] = {}
        self.damaged: dict[bytes, RecordDamaged] = {}
        # The state before each change, inside of `all_or_nothing`.
        self._journal: list[tuple[Entry, Record | None, bool]] | None = None
        # Jobs that are set aside, with the keys of the entries by which they were found.
        self._set_aside: dict[tuple[TypeKeys, bytes], bytes] = {}
        # Removed jobs, with the records of their ends.
        self._left: dict[Entry, Record] = {}
        self._orders = 0
        self._new_run_data = run_data.started_anew(b"", self.now)

        # Bytes of the records that were read, and of those that will be written.
        self._read = 0
        self._size = 0
        self._most_written = limits.transaction // SHARE
        self.is_full = False
        self._adds = False
        # Bytes that may be added without asking the store.
        self._claimed = 0

        # Events of jobs, by type; and the type of the latest event.
        self._tallies: dict[TypeKeys, Tally] = {}
        self._tallied: TypeKeys | None = None
        # Changes of the numbers of jobs in a state, beside those of entries.
        self._recounted: list[tuple[TypeKeys, int, int]] = []

        # Here and below dictionaries use one of a type's keys, not its TypeKeys: Python keeps the hash of bytes, while
        # TypeKeys would cost a call of __hash__ each time.
        self.existing_types: set[bytes] = set()
        self.retentions: dict[bytes, Retention] = {}
        self._woken: dict[bytes, TypeKeys] = {}
        self._active: dict[bytes, TypeKeys] = {}
        self._taken_away: dict[TypeKeys, None] = {}
        # Types known to be awake, and from when on monitors must watch over jobs of this transaction.
        self._awake: set[bytes] = set()
        self._watched: dict[TypeKeys, float] = {}
        # Whether notifiers follow the types of the jobs that were read, and whether they follow any of them.
        self._followed: dict[bytes, bytes | None] = {}
        self._is_followed = False

    # Reading jobs

    async def load(self, place: Place) -> Entry:
        """Return the job's entry, read from the store the first time.

        Raises:
            RecordDamaged: its record cannot be read.
        """
        data_key = place[0].data + place[2]
        entry = self.entries.get(data_key)
        if entry is None:
            if data_key not in self.damaged:
                entry = await self._read_one(data_key, place)
            if entry is None:
                # A copy: the same job may be asked for again, and raising an error adds to its traceback.
                raise copy.copy(self.damaged[data_key])
        return entry

    async def _read_one(self, data_key: bytes, place: Place) -> Entry | None:
        """Return a job's entry as stored, None if its record cannot be read."""
        keys, id, packed_id = place
        if keys.followed in self._followed:
            raw = await self.transaction.get(data_key)
        else:
            raw, followed = await self.transaction.get_many((data_key, keys.followed))
            self._note_followed(keys, followed)
        if raw is not None:
            self._count_read(len(raw))
        try:
            entry = self.entries[data_key] = Entry(keys, id, packed_id, raw)
        except RecordDamaged as error:
            self.damaged[data_key] = error.of(keys.type, id)
            return None
        return entry

    async def prefetch(self, jobs: Sequence[Place]) -> None:
        """Read jobs that are about to be touched; the reads go out together. Raises nothing for unreadable records."""
        entries = self.entries
        if len(jobs) == 1:
            [place] = jobs
            data_key = place[0].data + place[2]
            if data_key not in entries and data_key not in self.damaged:
                await self._read_one(data_key, place)
            return
        known: Collection[bytes] = {*entries, *self.damaged} if self.damaged else entries
        missing: dict[bytes, Place] = {}
        of_types: dict[bytes, TypeKeys] = {}
        latest: TypeKeys | None = None
        for place in jobs:
            keys = place[0]
            data_key = keys.data + place[2]
            if data_key not in known:
                missing[data_key] = place
                if keys is not latest:  # jobs of one type mostly come one after the other: skip the dictionary then
                    latest = of_types[keys.followed] = keys
        if missing:
            types = [keys for followed, keys in of_types.items() if followed not in self._followed]
            raws = await self.transaction.get_many([*missing, *(keys.followed for keys in types)])
            for keys, followed in zip(types, raws[len(missing) :], strict=True):
                self._note_followed(keys, followed)
            for (data_key, (keys, id, packed_id)), raw in zip(missing.items(), raws, strict=False):
                try:
                    entries[data_key] = Entry(keys, id, packed_id, raw)
                except RecordDamaged as error:
                    self.damaged[data_key] = error.of(keys.type, id)
            self._count_read(sum(map(len, filter(None, raws[: len(missing)]))))

    def loaded(self, place: Place) -> Entry | None:
        """Return the job's entry if it was read already."""
        return self.entries.get(place[0].data + place[2])

    async def load_many(self, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
        """Return the jobs' entries in their order; the reads go out together.

        For invalid ids and unreadable records, the entry has no record, and is not kept.
        """
        try:
            jobs = [(keys, unpack_id(packed_id), packed_id) for packed_id in packed_ids]
        except (IndexError, ValueError):
            jobs = [(keys, unpack_id(packed_id), packed_id) for packed_id in packed_ids if is_id(packed_id)]
        await self.prefetch(jobs)
        entries = self.entries
        data = keys.data
        try:
            return [entries[data + packed_id] for packed_id in packed_ids]
        except KeyError:
            return [entries.get(data + packed_id) or Entry(keys, b"", packed_id, None) for packed_id in packed_ids]

    async def load_fitting(self, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
        """Return the entries of as many jobs from the front, at least one, as `fitting` accepts.

        Records are read in growing pages, the first within a transaction's bounds: most of a thousand large ones are
        not even read.
        """
        entries: list[Entry] = []
        page = max(1, self._limits.transaction // self._limits.value)
        most, size = self._most_written, 0
        while len(entries) < len(packed_ids):
            ids = packed_ids[len(entries) : len(entries) + page]
            known, read = len(self.entries), self._read
            entries += await self.load_many(keys, ids)
            # Usually all of them were read just now, and are far from too much: then there is no need to measure each.
            if len(self.entries) - known == len(ids):
                size += most_rewritten_bytes(len(ids), self._read - read, sum(map(len, ids)), len(keys.ready))
            else:
                most = -1
            if size > most:
                fit = self.fitting(entries)
                if len(fit) < len(entries):
                    return fit
            page *= _PAGE_GROWTH
        return entries

    def fitting(self, entries: list[Entry]) -> list[Entry]:
        """Return as many entries from the front, at least one, as fit beside a transaction's other contents."""
        room = Room(self._most_written)
        for position, entry in enumerate(entries):
            record = entry.record
            if record is not None:
                size = rewritten_bytes(record, len(entry.keys.ready) + len(entry.packed_id))
                if not room.takes(size) and position:
                    return entries[:position]
        return entries

    def _count_read(self, size: int) -> None:
        self._read += size
        if self._read > self._limits.transaction:
            self.is_full = True

    def _note_followed(self, keys: TypeKeys, followed: bytes | None) -> None:
        self._followed[keys.followed] = followed
        if followed is not None:
            self._is_followed = True

    # Changing jobs

    def create(
        self, entry: Entry, json: bytes, priority: bytes, run_at: float | None, limits: bytes | None = None
    ) -> None:
        """Create a pending job."""
        keys = entry.keys
        place = READY if run_at is None or run_at <= self.now else SCHEDULED  # as `place_for`, without its call
        packed = (
            self._new_run_data if limits is None else run_data.with_part(self._new_run_data, run_data.LIMITS, limits)
        )
        record = Record(None, place, self.new_seq(), priority, run_at, None, False, None, json, packed)
        key_size = keys.ready_bytes + len(entry.packed_id)
        if key_size + len(priority) > self._ample_key or len(json) > self._ample_value:
            check_size(self._limits, entry, record)
        # About the bytes that FoundationDB counts: the id is in the key of the record, of the index entry and of a
        # conflict range. It is cheaper than an exact sum, and the bounds leave room.
        size = 3 * key_size + len(json) + (0 if limits is None else len(limits))
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

    def _look_whether_full(self) -> None:
        self.is_full = self._size > self._most_written or self._read > self._limits.transaction

    def place_for(self, run_at: float | None) -> int:
        """Return READY or SCHEDULED: the waiting place of a job that is due at `run_at`."""
        return READY if run_at is None or run_at <= self.now else SCHEDULED

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

    def new_seq(self) -> NewSeq:
        """Return the next seq of this transaction."""
        order = self._orders
        if order > _MAX_ORDER:
            raise TransactionTooLarge(f"a transaction that moves more than {_MAX_ORDER + 1} jobs; split it")
        self._orders = order + 1
        return NewSeq(self.transaction.stamp, order.to_bytes(2, "big"))

    # Unreadable jobs

    def condemn(self, entry: Entry, error: RecordDamaged) -> None:
        """Note that a part of a job's record, unchanged in this transaction, turned out to be unreadable."""
        data_key = entry.keys.data + entry.packed_id
        del self.entries[data_key]
        self.damaged[data_key] = error.of(entry.keys.type, entry.id)

    def set_aside(self, keys: TypeKeys, packed_id: bytes, index_key: bytes) -> None:
        """Note that a job is in no index any more, as its record cannot be read, and have its subscribers told.

        Args:
            keys, packed_id: the job.
            index_key: of the entry by which it was found.
        """
        self._set_aside.setdefault((keys, packed_id), index_key)
        self._active[keys.data] = keys

    async def _note_set_aside(self) -> None:
        """Write the rows of jobs that are set aside now; those in an unknown state are no longer counted."""
        transaction = self.transaction
        for (keys, packed_id), index_key in self._set_aside.items():
            row, retrying = keys.set_aside + packed_id, keys.retrying + packed_id
            before, was_retrying, raw = await transaction.get_many((row, retrying, keys.data + packed_id))
            if before is not None or raw is None:
                continue
            transaction.clear(retrying)
            try:
                Record.decode(raw)
            except RecordDamaged:
                transaction.set(row, IS_UNCOUNTED)
                self._recounted.append((keys, lane_of_damaged(keys, index_key, was_retrying is not None), -1))
            else:  # its run data are damaged: it goes on to be counted in its state
                transaction.set(row, b"")

    def forget(self, place: Place, lane: int | None) -> None:
        """Make a job with an unreadable record disappear; it was counted in this lane, None for none."""
        keys, id, packed_id = place
        data_key = keys.data + packed_id
        self.damaged.pop(data_key, None)
        self._set_aside.pop((keys, packed_id), None)
        gone = self.entries[data_key] = Entry(keys, id, packed_id, None)
        gone.stored = gone.changed = True
        self._active[keys.data] = keys
        if lane is not None:
            self._recounted.append((keys, lane, -1))

    # Counting

    def tally(self, keys: TypeKeys) -> Tally:
        """Return the tally of a type's jobs."""
        if keys is not self._tallied:  # those of one type come together
            self._tallied = keys
            self._tally = self._tallies.setdefault(keys, new_tally())
        return self._tally

    def happened(self, keys: TypeKeys, event: int) -> None:
        """Count an event of a job."""
        self.tally(keys)[event] += 1

    def ran(self, keys: TypeKeys, record: Record, event: int) -> None:
        """Count the end of a job's run, and the time that it took, if the record from before the end tells it."""
        tally = self._tally if keys is self._tallied else self.tally(keys)
        tally[event, record.run_data[NEWEST]] += 1

    # Types

    async def require_type(self, keys: TypeKeys) -> None:
        """Check that the type exists, by a snapshot read: adding never conflicts with a changed timeout.

        Raises:
            NoTypeTimeout: it does not.
        """
        if keys.timeout in self.existing_types:
            return
        if await self.transaction.snapshot.get(keys.timeout) is None:
            raise NoTypeTimeout.of(keys.type)
        self.existing_types.add(keys.timeout)

    async def is_paused(self, keys: TypeKeys) -> bool:
        """Whether the type is paused; an accept conflicts with a transaction that changes that."""
        # An accept needs to know as well whether the type is awake: on a cluster this is one round trip for both.
        paused, is_awake = await self.transaction.snapshot.get_many((keys.paused, keys.awake))
        self.transaction.add_read_conflict_key(keys.paused)
        if is_awake is not None:
            self.transaction.add_read_conflict_key(keys.awake)
            self._awake.add(keys.awake)
        return paused is not None

    def pause(self, keys: TypeKeys) -> None:
        """Stop all workers from accepting jobs of the type."""
        self.transaction.set(keys.paused, b"")

    def resume(self, keys: TypeKeys) -> None:
        """Let workers accept jobs of the type again, and wake those that wait."""
        self.transaction.clear(keys.paused)
        self._woken[keys.data] = keys

    async def set_retention(self, keys: TypeKeys, retention: Retention) -> None:
        """Set the retention of jobs of the type that finish from now on."""
        self.retentions[keys.retention] = retention
        self.transaction.set(keys.retention, retention.encode())
        if retention.lets_leave:
            await self.tell_of_leaving(keys)

    async def retention(self, keys: TypeKeys) -> Retention:
        """Return the retention of the type's finished jobs."""
        retention = self.retentions.get(keys.retention)
        if retention is None:
            # A snapshot read, so that a change of retention is no conflict for every finish: it may take effect later.
            packed = await self.transaction.snapshot.get(keys.retention)
            retention = self.retentions[keys.retention] = FOR_EVER if packed is None else Retention.decode(packed)
        return retention

    async def tell_of_leaving(self, keys: TypeKeys) -> None:
        """Have the notifiers of the type follow it; until they do, write LAST rows for all jobs that leave."""
        if keys.followed not in self._followed:
            self._note_followed(keys, await self.transaction.get(keys.followed))
        followed = self._followed[keys.followed]
        if followed is None or changes.is_in_doubt(followed):
            self._note_followed(keys, changes.doubt(self.transaction, keys, self.sources))
        self._active[keys.data] = keys

    # Signals to workers, monitors and notifiers

    def wake(self, keys: TypeKeys) -> None:
        """Wake the workers that wait for jobs of the type, and the subscribers of its jobs."""
        self._woken[keys.data] = self._active[keys.data] = keys

    def woke(self, keys: TypeKeys) -> bool:
        """Whether this transaction has made a job of the type pending: a watch that it sets does not fire for that."""
        return keys.data in self._woken

    def take_away(self, keys: TypeKeys) -> None:
        """Wake the workers of running jobs of the type: one of them has lost its job, or should end it."""
        self._taken_away[keys] = None

    def watch_over(self, keys: TypeKeys, record: Record) -> None:
        """Have monitors watch over a job that did not run before: the type of a running job is awake."""
        if record.lock is not None:
            if keys.awake not in self._awake:
                self._watched[keys] = -math.inf
        elif record.place == SCHEDULED:
            assert record.run_at is not None
            self._watch_over_from(keys, record.run_at)
        elif not record.place and (expires := run_data.expires_at(record.run_data)) is not None:
            self._watch_over_from(keys, expires)

    def _watch_over_from(self, keys: TypeKeys, time: float) -> None:
        self._watched[keys] = min(time, self._watched.get(keys, time))

    # Writing

    @property
    def needs_settling(self) -> bool:
        """Whether `settle` has anything to do."""
        return bool(self._watched) or self._is_followed or bool(self._set_aside)

    async def settle(self) -> None:
        """Do the work that needs reads for the touched jobs and types; to be called before `flush`."""
        await self._wake_types()
        if self._set_aside:
            await self._note_set_aside()

    async def _wake_types(self) -> None:
        """Wake the types with jobs that a monitor must watch over."""
        if self._is_followed:
            # The rows of changes that this transaction writes need a monitor, which removes them if no follower does.
            for keys in self._active.values():
                if self._followed.get(keys.followed):
                    self._watched[keys] = -math.inf
        for keys, time in self._watched.items():
            if keys.awake not in self._awake:
                await awake_types.wake(self.transaction, self.keyspace, keys, time)
        self._awake.update(keys.awake for keys in self._watched)

    def flush(self) -> None:
        """Write the final state of every job that was changed: DATA, its index entry, RETRYING and LAST.

        And of its type: COUNTS, MINUTES, HOURS, WATCH_PENDING, WATCH_ACTIVITY, WATCH_CANCELED and CHANGES. Before that
        `settle` has written AWAKE (with ASLEEP and ALARM) and SET_ASIDE.
        """
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
                    # Also for a job that this unit added: an earlier block of the transaction may have had it leave.
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
            if record.run_data is new and record.place == READY:
                lane = IS_READY
            elif record.lock is not None:
                lane = IS_RUNNING
            else:
                lane = lane_of(record) if record.outcome is None else OF_OUTCOME[record.outcome]
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
            transaction.add(keys.watch_pending, ONE)
        for keys in self._taken_away:
            transaction.add(keys.watch_canceled, ONE)
        for keys in self._active.values():
            values.append((keys.watch_activity, b"", b""))
        if values:
            transaction.stamp_all(values, index)
        # On a full store, transactions that take, end or remove jobs must still go through: they use the reserve.
        if not self._adds and (values or not self.has_application):
            transaction.use_reserve()

    def _changes(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield rows for the jobs that have changed without a new row in ACTIVITY, by which notifiers find them."""
        changed: dict[TypeKeys, list[bytes]] = {}
        latest: TypeKeys | None = None
        ids: list[bytes] | None = None
        wants_new = False
        for entry in self.entries.values():
            record = entry.record
            if not entry.changed or (record is None and not entry.stored):
                continue
            if record is not None and record.lock is not None and record.seq.__class__ is not bytes:
                continue  # it has a new row in ACTIVITY, by which notifiers find it
            keys = entry.keys
            if keys is not latest:  # jobs of one type mostly come one after the other: skip the dictionary then
                latest = keys
                followed = self._followed.get(keys.followed)
                ids = None if followed is None else changed.setdefault(keys, [])
                wants_new = followed is not None and changes.wants_new(followed)
            if ids is not None and (entry.stored or wants_new):
                ids.append(entry.packed_id)
        for keys, packed_id in self._set_aside:
            if self._followed.get(keys.followed):
                changed.setdefault(keys, []).append(packed_id)
                self._active[keys.data] = keys  # `all_or_nothing` may have taken it out
        for keys, packed_ids in changed.items():
            for value in changes.write(packed_ids) if packed_ids else ():
                # From the count of jobs' orders: unique also where a transaction has several blocks, each with a unit.
                yield keys.changes + STAMP_CODE, self.new_seq().order, value

    def _write_last(self, entry: Entry, values: list[tuple[bytes, bytes, bytes]]) -> None:
        """Write the LAST row of a job that has left with its end; clear that of a job that was removed."""
        key = entry.keys.last + entry.packed_id
        record = self._left.get(entry)
        if record is None:
            self.transaction.clear(key)
        else:
            values.append((key, *record.around_stamp()))


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
        if unit.needs_settling:
            await unit.settle()
    finally:
        if unit.damaged and damaged is not None:
            damaged(unit.damaged.values())
    unit.flush()
    return result
