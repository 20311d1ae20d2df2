"""A unit of work: the jobs that one transaction has touched, each written once, at its end. Floor: layer.

FoundationDB cannot read back, in the same transaction, a key or value that is to get a versionstamp. So operations
answer from what is remembered here, and `flush` writes every job's final state and index entry. Old index entries are
cleared at once: those may be read back, so that a queue never shows a job that this transaction has moved.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import fdb.tuple

from jobs_service import run_data
from jobs_service.errors import JobTooLarge, RecordDamaged, StoreDamaged, StoreFull, TransactionTooLarge, job_name
from jobs_service.layer import awake_types, changes
from jobs_service.layer.batch_bounds import SHARE, Room, most_rewritten_bytes, rewritten_bytes
from jobs_service.layer.key_parts import STAMP_CODE, is_id, pack_seconds, unpack_id, unpacked
from jobs_service.layer.keyspace import Keyspace, TypeKeys
from jobs_service.layer.keyspace import Place as Place
from jobs_service.layer.record import LOCK_BYTES, READY, SCHEDULED, NewSeq, Record
from jobs_service.model import JobId, Outcome
from jobs_service.sources import Sources
from jobs_service.store.base import LONGEST_STAMPED_KEY, OFFSET_BYTES, Limits, Transaction

T = TypeVar("T")

_ONE = (1).to_bytes(8, "little")
_KEY_OVERHEAD: Final = 13
_ADDED_BYTES: Final = 300
"""What a new job takes in a store beside its data and keys, about."""
_CLAIMED_AT_ONCE: Final = 100_000
_MAX_ORDER: Final = 0xFFFF
_PAGE_GROWTH: Final = 4


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
        """Return what `encode` encoded; for ever when these bytes are no retention: nothing is removed by mistake."""
        kept = unpacked(packed)
        good = len(kept) == len(cls._fields) and all(
            each is None or (type(each) is float and each >= 0) for each in kept
        )
        return cls(*kept) if good else FOR_EVER


FOR_EVER: Final = Retention(None, None)


class JobSnapshot(NamedTuple):
    """A job at one moment of a transaction.

    Attributes:
        keys, id: the job.
        record: None when there is none.
        added: whether `enqueue` has just added it; None where nobody asked.
    """

    keys: TypeKeys
    id: JobId
    record: Record | None
    added: bool | None = None


class Entry:
    """One touched job: its place in the keyspace, whether the store has it, and its present record, None for none."""

    __slots__ = ("added", "changed", "id", "keys", "packed_id", "record", "stored")

    def __init__(self, keys: TypeKeys, id: JobId, packed_id: bytes, raw: bytes | None) -> None:
        self.keys = keys
        self.id = id
        self.packed_id = packed_id
        self.stored = raw is not None
        self.record = None if raw is None else Record.decode(raw, True)
        self.changed = False
        self.added: bool | None = None

    def seen(self) -> JobSnapshot:
        """Return what the job is now: the entry itself goes on with the transaction."""
        return JobSnapshot(self.keys, self.id, self.record, self.added)


class UnitOfWork:
    """The jobs touched by one run of a transaction function.

    Args:
        transaction: the store's transaction.
        keyspace: where the keys are.
        sources: wall-clock time and randomness.
        instance: of the store; what the locks of accepted jobs begin with.
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
        "_limits",
        "_most_written",
        "_notes_of_new",
        "_orders",
        "_read",
        "_set_aside",
        "_size",
        "_taken_away",
        "_watched",
        "_woken",
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
        "transaction",
    )

    def __init__(self, transaction: Transaction, keyspace: Keyspace, sources: Sources, instance: bytes = b"") -> None:
        self.transaction = transaction
        self.keyspace = keyspace
        self.sources = sources
        self.instance = instance
        self.now = sources.wall_time()
        self.entries: dict[bytes, Entry] = {}
        # Jobs whose records were read, and cannot be decoded: they are not among the entries.
        self.damaged: dict[bytes, RecordDamaged] = {}
        self._set_aside: list[tuple[TypeKeys, bytes]] = []
        # Here and below types are told apart by one of their keys: the hash of bytes costs no call.
        # Timeouts of types known to exist, as long as this transaction does not change types.
        self.existing_types: set[bytes] = set()
        self._limits = limits = transaction.limits
        # What is smaller than this is well within every limit, whatever its type and flags.
        self._ample_key = min(limits.key // 2, limits.value // 8)
        self._ample_value = limits.value // 4
        self._orders = 0
        # What was there before each change, as long as somebody may want it back.
        self._journal: list[tuple[Entry, Record | None, bool]] | None = None
        self._adds = False
        # Bytes that may be added without asking the store.
        self._claimed = 0
        self._notes_of_new = run_data.started_anew(b"", self.now)
        # Whether the application may write keys of its own in this transaction.
        self.has_application = False
        # Bytes of the records that were read, and of those that will be written.
        self._read = 0
        self._size = 0
        self._most_written = limits.transaction // SHARE
        # Whether so much is rewritten here that whatever is left should have a transaction of its own.
        self.is_full = False
        self._woken: dict[bytes, TypeKeys] = {}
        self._active: dict[bytes, TypeKeys] = {}
        self._taken_away: dict[TypeKeys, None] = {}
        # Types known to be awake, and from when on monitors must watch over jobs of this transaction.
        self._awake: set[bytes] = set()
        self._watched: dict[TypeKeys, float] = {}
        # Whether types of jobs that were read are followed, and whether any of them is.
        self._followed: dict[bytes, bool] = {}
        self._is_followed = False
        # Those that are known already.
        self.retentions: dict[bytes, Retention] = {}

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
                raise copy.copy(self.damaged[data_key])
        return entry

    async def _read_one(self, data_key: bytes, place: Place) -> Entry | None:
        """Return a job's entry as the store has it, None when its record cannot be read."""
        keys, id, packed_id = place
        try:
            if keys.followed in self._followed:
                raw = await self.transaction.get(data_key)
            else:
                raw, followed = await self.transaction.get_many((data_key, keys.followed))
                self._note_followed(keys, followed)
        except StoreDamaged as error:
            self.damaged[data_key] = RecordDamaged(f"job {job_name(keys.type, id)}: {error}", type=keys.type, id=id)
            if keys.followed not in self._followed:
                with contextlib.suppress(StoreDamaged):
                    self._note_followed(keys, await self.transaction.get(keys.followed))
            return None
        if raw is not None:
            self._count_read(len(raw))
        try:
            entry = self.entries[data_key] = Entry(keys, id, packed_id, raw)
        except RecordDamaged as error:
            self.damaged[data_key] = error.of(keys.type, id)
            return None
        return entry

    def _count_read(self, size: int) -> None:
        self._read += size
        if self._read > self._limits.transaction:
            self.is_full = True

    def _note_followed(self, keys: TypeKeys, followed: bytes | None) -> None:
        self._followed[keys.followed] = is_followed = followed is not None
        if is_followed:
            self._is_followed = True

    def condemn(self, entry: Entry, error: RecordDamaged) -> None:
        """Note that a part of a job's record, of which nothing was changed here, turned out to be unreadable."""
        data_key = entry.keys.data + entry.packed_id
        del self.entries[data_key]
        self.damaged[data_key] = error.of(entry.keys.type, entry.id)

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
                if keys is not latest:  # those of one type come together
                    latest = of_types[keys.followed] = keys
        if missing:
            types = [keys for followed, keys in of_types.items() if followed not in self._followed]
            try:
                raws = await self.transaction.get_many([*missing, *(keys.followed for keys in types)])
            except StoreDamaged:  # of one of them, perhaps, and not of the others
                for data_key, place in missing.items():
                    await self._read_one(data_key, place)
                return
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

        What is no id, or names a job whose record cannot be read, gets an entry without a record that is not kept.
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

    def new_locks(self, count: int) -> list[bytes]:
        """Return locks that nobody has had."""
        # One draw for all: the system's randomness has its price.
        drawn = self.sources.token(count * LOCK_BYTES)
        head = self.instance
        rest = LOCK_BYTES - len(head)
        return [head + drawn[start : start + rest] for start in range(0, len(drawn), LOCK_BYTES)]

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
        room = Room(self._most_written)
        for position, entry in enumerate(entries):
            record = entry.record
            if record is not None:
                size = rewritten_bytes(record, len(entry.keys.ready) + len(entry.packed_id))
                if not room.takes(size) and position:
                    return entries[:position]
        return entries

    async def load_fitting(self, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
        """Return the entries of as many jobs from the front, at least one, as `fitting` leaves of them.

        Records are read in growing pages, the first of which is no more than a transaction may hold: of a thousand
        large ones most are not even read.
        """
        entries: list[Entry] = []
        page = max(1, self._limits.transaction // self._limits.value)
        most, size = self._most_written, 0
        while len(entries) < len(packed_ids):
            ids = packed_ids[len(entries) : len(entries) + page]
            known, read = len(self.entries), self._read
            entries += await self.load_many(keys, ids)
            # Mostly all of them were read just now, and are far from too much: then none is looked at.
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

    @property
    def has_watched(self) -> bool:
        """Whether there is anything for `wake_types` to do."""
        return bool(self._watched) or self._is_followed

    def create(
        self, entry: Entry, json: bytes, priority: bytes, run_at: float | None, limits: bytes | None = None
    ) -> None:
        """Make a job that does not exist be pending."""
        keys = entry.keys
        place = READY if run_at is None or run_at <= self.now else SCHEDULED
        told = self._notes_of_new if limits is None else run_data.with_part(self._notes_of_new, run_data.LIMITS, limits)
        record = Record(None, place, self.new_seq(), priority, run_at, None, False, None, json, told)
        key_size = keys.ready_bytes + len(entry.packed_id)
        if key_size + len(priority) > self._ample_key or len(json) > self._ample_value:
            self._check_size(entry, record)
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
        data = keys.data
        self._woken[data] = keys
        self._active[data] = keys

    def _claim_room(self, size: int) -> int:
        """Claim room for what is added: for many jobs at once, if there is so much, because asking has its price.

        Returns:
            The bytes that may be added beyond these without asking.
        """
        try:
            self.transaction.claim_room(size + _CLAIMED_AT_ONCE)
        except StoreFull:
            self.transaction.claim_room(size)
            return 0
        return _CLAIMED_AT_ONCE

    def take_over(self, entry: Entry, record: Record) -> None:
        """Make a job that does not exist be as it was in another store, with its history if there is room for it."""
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
            self._check_size(entry, record)
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
                self._clear_index(entry, before)
                if record.place:
                    self._woken[data] = keys
            # One that is accepted of a type that is awake, as nearly all are, needs nothing.
            if before.lock is None and (record.lock is None or keys.awake not in self._awake):
                self.watch_over(keys, record)
        entry.record = record
        entry.changed = True
        self._active[data] = keys

    def _look_whether_full(self) -> None:
        self.is_full = self._size > self._most_written or self._read > self._limits.transaction

    def watch_over(self, keys: TypeKeys, record: Record) -> None:
        """Have monitors watch over a job that did not run before: the type of one that did is awake."""
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

    async def wake_types(self) -> None:
        """Have the types watched over whose jobs need that; to be called before `flush`."""
        if self._is_followed:
            # Somebody must see to it that the rows of changes do not grow for ever.
            for keys in self._active.values():
                if self._followed.get(keys.followed):
                    self._watched[keys] = -math.inf
        for keys, time in self._watched.items():
            if keys.awake not in self._awake:
                await awake_types.wake(self.transaction, self.keyspace, keys, time)
        self._awake.update(keys.awake for keys in self._watched)

    def woke(self, keys: TypeKeys) -> bool:
        """Whether this transaction has made a job of the type pending: a watch that it sets does not fire for that."""
        return keys.data in self._woken

    def take_away(self, keys: TypeKeys) -> None:
        """Have it noticed at once that a running job of the type is its worker's no more, or is to end."""
        self._taken_away[keys] = None

    async def is_paused(self, keys: TypeKeys) -> bool:
        """Whether nobody is to accept jobs of the type; a conflict for who accepts when that changes meanwhile."""
        # Whoever accepts must know whether the type is awake as well: on a cluster one round trip for both.
        paused, is_awake = await self.transaction.snapshot.get_many((keys.paused, keys.awake))
        self.transaction.add_read_conflict_key(keys.paused)
        if is_awake is not None:
            self.transaction.add_read_conflict_key(keys.awake)
            self._awake.add(keys.awake)
        return paused is not None

    def pause(self, keys: TypeKeys) -> None:
        """Have nobody accept jobs of the type."""
        self.transaction.set(keys.paused, b"")

    def resume(self, keys: TypeKeys) -> None:
        """Have jobs of the type accepted again, and wake those who wait for them."""
        self.transaction.clear(keys.paused)
        self._woken[keys.data] = keys

    def set_retention(self, keys: TypeKeys, retention: Retention) -> None:
        """Say how long jobs of the type are kept that finish from now on."""
        self.retentions[keys.retention] = retention
        self.transaction.set(keys.retention, retention.encode())

    async def retention(self, keys: TypeKeys) -> Retention:
        """Return how long finished jobs of the type are kept."""
        retention = self.retentions.get(keys.retention)
        if retention is None:
            # A snapshot read: whoever changes it is in no hurry.
            packed = await self.transaction.snapshot.get(keys.retention)
            retention = self.retentions[keys.retention] = FOR_EVER if packed is None else Retention.decode(packed)
        return retention

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Leave no change of any job when the block raises."""
        outer, own = self._journal, list[tuple[Entry, Record | None, bool]]()
        woken, active, size = self._woken.copy(), self._active.copy(), self._size
        watched, adds = self._watched.copy(), self._adds
        self._journal = own
        try:
            yield
        except BaseException:
            for entry, record, changed in reversed(own):
                self._restore(entry, record, changed)
            self._woken, self._active, self._size = woken, active, size
            self._look_whether_full()
            self._watched, self._adds = watched, adds
            own.clear()
            raise
        finally:
            self._journal = outer
            if outer is not None:
                outer += own

    def _restore(self, entry: Entry, record: Record | None, changed: bool) -> None:
        """Make a job be again what it was before a change."""
        present = entry.record
        entry.record, entry.changed = record, changed
        if record is not None and (present is None or present.seq is not record.seq) and type(record.seq) is bytes:
            self.write_index(entry, record)

    def write_index(self, entry: Entry, record: Record) -> None:
        """Write the index entry that a stored record points at."""
        keys = entry.keys
        assert isinstance(record.seq, bytes)
        if record.lock is not None:
            self.transaction.set(keys.activity_head + record.seq, entry.packed_id)
        elif record.place == READY:
            run_at = b"" if record.run_at is None else pack_seconds(record.run_at)
            self.transaction.set(ready_key(entry, record), run_at)
        elif record.place == SCHEDULED:
            self.transaction.set(scheduled_key(entry, record), record.priority)
        elif (expires := run_data.expires_at(record.run_data)) is not None:
            self.transaction.set(keys.expiring + pack_seconds(expires) + entry.packed_id, b"")

    def wake(self, keys: TypeKeys) -> None:
        """Have those look again who wait for jobs of the type, or for what becomes of one."""
        self._woken[keys.data] = self._active[keys.data] = keys

    def set_aside(self, keys: TypeKeys, packed_id: bytes) -> None:
        """Note that a job is in no index any more, as its record cannot be read, and have its subscribers told."""
        self.transaction.set(keys.set_aside + packed_id, b"")
        self._set_aside.append((keys, packed_id))
        self._active[keys.data] = keys

    def forget(self, place: Place) -> None:
        """Make a job be gone whose record cannot be read."""
        keys, id, packed_id = place
        data_key = keys.data + packed_id
        self.damaged.pop(data_key, None)
        gone = self.entries[data_key] = Entry(keys, id, packed_id, None)
        gone.stored = gone.changed = True
        self._active[keys.data] = keys

    def remove(self, entry: Entry) -> None:
        """Make the job be gone."""
        if self._journal is not None:
            self._journal.append((entry, entry.record, entry.changed))
        if entry.record is not None:
            self._clear_index(entry, entry.record)
        entry.record = None
        entry.changed = True
        self._active[entry.keys.data] = entry.keys

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
            elif (expires := run_data.expires_at(record.run_data)) is not None:
                transaction.set(entry.keys.expiring + pack_seconds(expires) + entry.packed_id, b"")
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
        # Whatever takes, ends or removes jobs, or changes types, must go on where nothing may be added any more.
        if not self._adds and (values or not self.has_application):
            transaction.use_reserve()

    def _changes(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the rows that tell followers which jobs have changed without a new row in ACTIVITY."""
        changed: dict[TypeKeys, list[bytes]] = {}
        latest: TypeKeys | None = None
        ids: list[bytes] | None = None
        for entry in self.entries.values():
            if not entry.changed or not entry.stored:
                continue
            record = entry.record
            if record is not None and record.lock is not None and record.seq.__class__ is not bytes:
                continue  # it has moved in ACTIVITY
            keys = entry.keys
            if keys is not latest:  # those of one type come together
                latest = keys
                ids = changed.setdefault(keys, []) if self._followed.get(keys.followed) else None
            if ids is not None:
                ids.append(entry.packed_id)
        for keys, packed_id in self._set_aside:
            if self._followed.get(keys.followed):
                changed.setdefault(keys, []).append(packed_id)
                self._active[keys.data] = keys  # unless what has met it was taken back
        for keys, packed_ids in changed.items():
            for value in changes.write(packed_ids):
                # Orders of this transaction, not of this unit alone: the application's may have several blocks.
                yield keys.changes + STAMP_CODE, self.new_seq().order, value

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
        elif (expires := run_data.expires_at(record.run_data)) is not None:
            self.transaction.clear(entry.keys.expiring + pack_seconds(expires) + entry.packed_id)

    def _check_size(self, entry: Entry, record: Record) -> None:
        """Refuse a record that may not fit until its job has ended, or whose keys may not."""
        limits = self._limits
        before = entry.record
        record.fit(limits.value - OFFSET_BYTES)
        if (
            before is not None
            and record.size() <= before.size()
            and record.encoded_size() <= limits.value
            and _longest_priority(record) <= _longest_priority(before)
        ):
            return  # Nothing was added to it: what was accepted goes on to its end, whatever it was accepted by.
        refuse_too_large(limits, entry.keys, entry.id, entry.packed_id, record)


def refuse_too_large(
    limits: Limits, keys: TypeKeys, id: JobId, packed_id: bytes, record: Record, limit: str = "the store's limit"
) -> None:
    """Check that a store takes the record and the keys of a job in every state until it has ended.

    Args:
        limits: of the store.
        keys, id, packed_id: the job.
        record: of the job; what gives way is gone already.
        limit: what messages call a limit of the store.

    Raises:
        JobTooLarge: it does not.
    """
    # FoundationDB adds an offset to what gets a versionstamp. What any store takes can be copied to a cluster.
    size = record.size() + OFFSET_BYTES
    if size > limits.value:
        raise JobTooLarge(
            f"job {job_name(keys.type, id)}: its record takes {size} bytes; {limit} is {limits.value}"
        ).about(keys.type, id)
    size = len(keys.ready) + len(packed_id) + _longest_priority(record) + _KEY_OVERHEAD
    if limits.key > LONGEST_STAMPED_KEY:
        size += OFFSET_BYTES
    if size > limits.key:
        raise JobTooLarge(
            f"job {job_name(keys.type, id)}: type, priority and id make a key of {size} bytes; {limit} is {limits.key}"
        ).about(keys.type, id)


def _longest_priority(record: Record) -> int:
    """Return the bytes of the longer priority of this run and the next."""
    return len(record.priority) if record.next is None else max(len(record.priority), len(record.next[0]))


def ready_key(entry: Entry, record: Record) -> bytes:
    """Return the READY key that the record points at."""
    assert isinstance(record.seq, bytes)
    return entry.keys.ready + record.priority + STAMP_CODE + record.seq + entry.packed_id


def scheduled_key(entry: Entry, record: Record) -> bytes:
    """Return the SCHEDULED key that the record points at."""
    assert record.run_at is not None
    return entry.keys.scheduled + pack_seconds(record.run_at) + entry.packed_id


async def run(
    transaction: Transaction,
    keyspace: Keyspace,
    sources: Sources,
    function: Callable[[UnitOfWork], Awaitable[T]],
    instance: bytes = b"",
    damaged: Callable[[Iterable[RecordDamaged]], object] | None = None,
) -> T:
    """Run a function on a unit of work and write what it leaves.

    Args:
        transaction: the store's transaction of this run.
        keyspace: where the keys are.
        sources: wall-clock time and randomness.
        function: the operations.
        instance: of the store.
        damaged: told which records could not be read, if there were any; on whatever thread the function runs.
    """
    unit = UnitOfWork(transaction, keyspace, sources, instance)
    try:
        result = await function(unit)
        if unit.has_watched:
            await unit.wake_types()
    finally:
        if unit.damaged and damaged is not None:
            damaged(unit.damaged.values())
    unit.flush()
    return result
