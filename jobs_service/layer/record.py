"""One state of a job: the value of its DATA key, and the moves from one state to the next."""

from __future__ import annotations

import struct
from typing import TypeAlias

from jobs_service import run_data as runs_of
from jobs_service.errors import RecordDamaged
from jobs_service.layer.record_format import (
    AFTER_STAMP,
    AT_PRIORITY,
    AT_REST_AFTER_STAMP,
    AT_REST_HEAD,
    BEFORE_STAMP,
    CANCEL,
    DECODED,
    ENDED,
    FIXED,
    HEAD,
    LEAST_AT_REST,
    LEAST_RUNNING,
    LOCK_BYTES,
    NAN,
    NEXT,
    OUTCOME_SHIFT,
    OUTCOMES,
    RESUBMIT,
    RUN_DATA,
    RUNNING,
    RUNNING_AFTER_STAMP,
    RUNNING_HEAD,
    SIZE,
    USUAL_AT_REST,
    USUAL_PRIORITY,
    USUAL_RUNNING,
    VERSION,
    ZERO_PRIORITY,
    check_run,
    check_state,
    of_another_version,
)
from jobs_service.model import JobState, Outcome, Priority, unpack_priority
from jobs_service.run_data import HEAD_BYTES
from jobs_service.run_values import HistoryKind
from jobs_service.store.base import STAMP_BYTES, CommitStamp

NextRun: TypeAlias = tuple[bytes, float | None]
"""Priority and run_at of the run after the present one."""


class NewSeq:
    """A seq whose versionstamp is known once its transaction has committed.

    Attributes:
        stamp: of the transaction.
        order: 2 bytes, the place within it.
    """

    __slots__ = ("order", "stamp")

    def __init__(self, stamp: CommitStamp, order: bytes) -> None:
        self.stamp = stamp
        self.order = order


class Record:
    """One state of a job. Never changed: `replace` makes the next one.

    Attributes:
        lock: 16 bytes while running, else None.
        place: READY or SCHEDULED while pending, else 0.
        seq: 12 bytes, or a NewSeq until they are known.
        priority: as the tuple layer packs it.
        run_at: seconds since the epoch, or None.
        outcome: how it ended, None unless finished.
        cancel: whether a creator asked for the running job's removal.
        next: the run after this one, if one was asked for: the resubmit flag.
        json: the data.
        run_data: attempts, history, result, error and progress, packed.
    """

    __slots__ = (
        "cancel",
        "json",
        "lock",
        "next",
        "outcome",
        "place",
        "priority",
        "run_at",
        "run_data",
        "seq",
    )

    def __init__(
        self,
        lock: bytes | None,
        place: int,
        seq: bytes | NewSeq,
        priority: bytes,
        run_at: float | None,
        outcome: Outcome | None,
        cancel: bool,
        next: NextRun | None,
        json: bytes,
        run_data: bytes = b"",
    ) -> None:
        self.lock = lock
        self.place = place
        self.seq = seq
        self.priority = priority
        self.run_at = run_at
        self.outcome = outcome
        self.cancel = cancel
        self.next = next
        self.json = json
        self.run_data = run_data

    @property
    def state(self) -> JobState:
        """Derived: a running job has a lock, a finished one neither lock nor queue entry, a pending one is the rest."""
        if self.lock is not None:
            return JobState.RUNNING
        return JobState.PENDING if self.place else JobState.FINISHED

    @property
    def named_priority(self) -> Priority:
        """The priority as the application gave it."""
        return unpack_priority(self.priority)

    @property
    def resubmit(self) -> bool:
        """Whether the job becomes pending again when it finishes."""
        return self.next is not None

    @property
    def seq_bytes(self) -> bytes | None:
        """The 12 bytes of seq, None until they are known."""
        seq = self.seq
        if seq.__class__ is bytes:
            return seq
        assert isinstance(seq, NewSeq)
        stamp = seq.stamp.value
        return None if stamp is None else stamp + seq.order

    def size(self) -> int:
        """Return the record's bytes in the largest of its job's states, with its present contents."""
        return self._beside_run_data() + max(len(self.run_data), HEAD_BYTES)

    def kept_size(self, room: int) -> int:
        """Return the least bytes of the record that suffice in every state until its job has ended.

        Args:
            room: bytes for data about the runs, beside the result.
        """
        return self._beside_run_data() + runs_of.kept_bytes(self.run_data, room)

    def _beside_run_data(self) -> int:
        # Whichever of the two priorities is the longer one may be that of both runs.
        priority = len(self.priority) if self.next is None else max(len(self.priority), len(self.next[0]))
        return FIXED + 2 * priority + len(self.json)

    def encoded_size(self) -> int:
        """Return the record's present bytes."""
        size = HEAD.size + len(self.priority) + len(self.json)
        if self.lock is not None:
            size += LOCK_BYTES
        if self.next is not None:
            size += NEXT.size + len(self.next[0])
        return size + SIZE.size + len(self.run_data) if self.run_data else size

    def fit(self, limit: int) -> None:
        """Shrink the data about the runs in an oversized record: a job must always be able to end."""
        if self.size() > limit:
            self.run_data = runs_of.fitted(self.run_data, limit - self._beside_run_data())

    def encode(self) -> bytes:
        """Return the bytes of a record whose seq is known."""
        before, after = self.around_stamp()
        assert isinstance(self.seq, bytes)
        return before + self.seq[:STAMP_BYTES] + after

    def around_stamp(self) -> tuple[bytes, bytes]:
        """Return the bytes before and after the versionstamp."""
        seq, run_data = self.seq, self.run_data
        order = seq.order if seq.__class__ is NewSeq else seq[STAMP_BYTES:]  # type: ignore[index]
        if (
            self.priority == ZERO_PRIORITY
            and self.run_at is None
            and self.next is None
            and run_data
            and not self.cancel
        ):
            # Nearly all records have one of two layouts, which a single struct packs in three quarters of the time of
            # `_around_stamp` (0.27 of 0.35 microseconds).
            lock, outcome = self.lock, self.outcome
            if lock is None:
                flags = self.place | (RUN_DATA if outcome is None else ENDED[outcome])
                after = AT_REST_AFTER_STAMP.pack(order, NAN, USUAL_PRIORITY, len(run_data))
                return BEFORE_STAMP[flags], after + run_data + self.json
            if outcome is None and not self.place:
                after = RUNNING_AFTER_STAMP.pack(order, NAN, USUAL_PRIORITY, lock, len(run_data))
                return USUAL_RUNNING, after + run_data + self.json
        return self._around_stamp(order)

    def _around_stamp(self, order: bytes) -> tuple[bytes, bytes]:
        """Return the bytes before and after the versionstamp, for a record of any layout."""
        flags = self.place
        tail = self.json
        if self.run_data:
            flags |= RUN_DATA
            tail = SIZE.pack(len(self.run_data)) + self.run_data + tail
        if self.next is not None:
            flags |= RESUBMIT
            priority, next_run_at = self.next
            tail = NEXT.pack(NAN if next_run_at is None else next_run_at, len(priority)) + priority + tail
        if self.lock is not None:
            flags |= RUNNING
            tail = self.lock + tail
        if self.cancel:
            flags |= CANCEL
        if self.outcome is not None:
            flags |= OUTCOMES.index(self.outcome) << OUTCOME_SHIFT
        run_at = self.run_at
        priority = self.priority
        after = AFTER_STAMP.pack(
            order,
            NAN if run_at is None else run_at,
            len(priority),
        )
        return BEFORE_STAMP[flags], after + priority + tail

    @classmethod
    def decode(cls, raw: bytes, checked: bool = False) -> Record:
        """Return the record that `encode` encoded.

        Args:
            raw: the bytes.
            checked: whether to check as well that a job can have this record, so that any operation on it succeeds.

        Raises:
            RecordDamaged: the bytes are no record, or one of a newer version.
        """
        if raw[AT_PRIORITY] == USUAL_PRIORITY:
            # Again the two usual layouts, unpacked in one step. As their heads are compared as a whole, only the checks
            # of lengths and time are left of those in `_decode` (a sixth faster for running jobs).
            kind = raw[:2]
            if kind == USUAL_RUNNING and len(raw) >= LEAST_RUNNING:
                seq, run_at, lock, size = RUNNING_HEAD.unpack_from(raw)
                end = RUNNING_HEAD.size + size
                if run_at != run_at and size >= HEAD_BYTES and end <= len(raw):
                    run_data = raw[RUNNING_HEAD.size : end]
                    return cls(lock, 0, seq, ZERO_PRIORITY, None, None, False, None, raw[end:], run_data)
            elif (rest := USUAL_AT_REST.get(kind)) is not None and len(raw) >= LEAST_AT_REST:
                seq, run_at, size = AT_REST_HEAD.unpack_from(raw)
                end = AT_REST_HEAD.size + size
                if run_at != run_at and size >= HEAD_BYTES and end <= len(raw):
                    run_data = raw[AT_REST_HEAD.size : end]
                    place, outcome = rest
                    return cls(None, place, seq, ZERO_PRIORITY, None, outcome, False, None, raw[end:], run_data)
        return cls._decode(raw, checked)

    @classmethod
    def _decode(cls, raw: bytes, checked: bool) -> Record:
        """Return the record, of any layout; see `decode`."""
        try:
            version, flags, seq, run_at, size = HEAD.unpack_from(raw)
            if version != VERSION:
                raise of_another_version(raw)
            end = HEAD.size + size
            priority = raw[HEAD.size : end]
            lock = None
            if flags & RUNNING:
                lock = raw[end : end + LOCK_BYTES]
                end += LOCK_BYTES
            following = None
            if flags & RESUBMIT:
                next_run_at, size = NEXT.unpack_from(raw, end)
                start = end + NEXT.size
                end = start + size
                following = (raw[start:end], None if next_run_at != next_run_at else next_run_at)
            run_data = b""
            if flags & RUN_DATA:
                [size] = SIZE.unpack_from(raw, end)
                start = end + SIZE.size
                end = start + size
                run_data = raw[start:end]
        except struct.error as error:
            if raw[:1] != bytes((VERSION,)):
                raise of_another_version(raw) from None
            raise RecordDamaged(f"a job's record is damaged: {error}") from None
        if end > len(raw):
            raise RecordDamaged(f"a job's record is damaged: it has {len(raw)} bytes; its fields take {end}")
        place, outcome, cancel, needs_look = DECODED[flags]
        if checked and (needs_look or priority != ZERO_PRIORITY or run_at == run_at or len(run_data) < HEAD_BYTES):
            check_state(flags, run_at, run_data)
            check_run(priority, run_at)
            if following is not None:
                check_run(following[0], NAN if following[1] is None else following[1])
        return cls(
            lock,
            place,
            seq,
            priority,
            None if run_at != run_at else run_at,
            outcome,
            cancel,
            following,
            raw[end:],
            run_data,
        )

    # The moves of a job: each returns the next state.

    def pending(self, place: int, seq: NewSeq, priority: bytes, run_at: float | None) -> Record:
        """Return the waiting record, with its flags kept."""
        return Record(None, place, seq, priority, run_at, None, False, self.next, self.json, self.run_data)

    def running(self, lock: bytes, seq: NewSeq, run_data: bytes | None = None) -> Record:
        """Return the record held by the lock's owner, with other run data if given; it may be running already."""
        packed = self.run_data if run_data is None else run_data
        return Record(lock, 0, seq, self.priority, self.run_at, None, self.cancel, self.next, self.json, packed)

    def finished(self, seq: NewSeq, outcome: Outcome, run_data: bytes | None = None) -> Record:
        """Return the ended record, with other run data if given; every flag is cleared."""
        packed = self.run_data if run_data is None else run_data
        return Record(None, 0, seq, self.priority, self.run_at, outcome, False, None, self.json, packed)

    def with_json(self, json: bytes) -> Record:
        """Return the record with other data."""
        record = self._copy()
        record.json = json
        return record

    def with_run_data(self, run_data: bytes) -> Record:
        """Return the record with other run data."""
        record = self._copy()
        record.run_data = run_data
        return record

    def with_event(
        self, kind: HistoryKind, now: float, detail: str = "", *, attempts: int = 0, most: int | None = None
    ) -> Record:
        """Return the record with one more event in its history; arguments as for `run_data.with_event`."""
        return self.with_run_data(runs_of.with_event(self.run_data, kind, now, detail, attempts=attempts, most=most))

    def with_next(self, following: NextRun | None) -> Record:
        """Return the record with the resubmit flag set or cleared."""
        record = self._copy()
        record.next = following
        return record

    def canceled(self) -> Record:
        """Return the record with the cancel flag."""
        record = self._copy()
        record.cancel = True
        return record

    def _copy(self) -> Record:
        return Record(
            self.lock,
            self.place,
            self.seq,
            self.priority,
            self.run_at,
            self.outcome,
            self.cancel,
            self.next,
            self.json,
            self.run_data,
        )
