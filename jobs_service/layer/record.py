"""The record of a job: what its DATA key holds, and its encoding. Floor: layer.

A fixed head, then what is optional, then the JSON, which nobody decodes before somebody looks. Measured on two cores,
CPython 3.11, with a head of twice the length: packing it takes 0.4 microseconds and unpacking 0.5, the same fields as a
tuple-layer tuple 9.0 and 8.3. Format 2, integers big-endian (format 1, never released, had more in its head):

| offset | bytes | field                                                                                             |
|--------|-------|---------------------------------------------------------------------------------------------------|
| 0      | 1     | format version: 2                                                                                 |
| 1      | 1     | flags: 1 running (a lock follows), 2 ready, 4 scheduled, 8 resubmit, 16 cancel;                    |
|        |       | bits 5 and 6: outcome (0 none, 1 succeeded, 2 failed, 3 canceled); 128 run data                 |
| 2      | 12    | seq: 10 bytes versionstamp, 2 bytes order within the transaction                                  |
| 14     | 8     | run_at, a double: seconds since the epoch; NaN for none                                           |
| 22     | 2     | p: length of the priority                                                                         |
| 24     | p     | priority, as the tuple layer packs it                                                             |
|        | 16    | lock, if running: random, but for the store's instance in front (8) where it has one               |
|        | 10+q  | if resubmit: the next run's run_at (8), q (2) and priority (q)                                    |
|        | 4+n   | if run data: n (4) and that (jobs_service/run_data.py)            |
|        | rest  | data as JSON, UTF-8; nothing for None                                                             |
"""

from __future__ import annotations

import math
import struct
from typing import Final

from jobs_service import run_data as runs_of
from jobs_service.errors import RecordDamaged
from jobs_service.layer.key_parts import EARLIEST, LATEST, is_priority
from jobs_service.model import JobState, Outcome
from jobs_service.run_data import ERROR, HEAD_BYTES
from jobs_service.run_values import HistoryKind, JobError
from jobs_service.store.base import STAMP_BYTES, CommitStamp

VERSION: Final = 2
LOCK_BYTES: Final = 16

RUNNING: Final = 1
READY: Final = 2
SCHEDULED: Final = 4
RESUBMIT: Final = 8
CANCEL: Final = 16
NOTES: Final = 128
_OUTCOME_SHIFT = 5
_PLACE = READY | SCHEDULED

_HEAD = struct.Struct(">BB12sdH")
_AFTER_STAMP = struct.Struct(">2sdH")
_BEFORE_STAMP: Final = tuple(bytes((VERSION, flags)) for flags in range(256))
_NEXT = struct.Struct(">dH")
_SIZE = struct.Struct(">I")
_FIXED: Final = _HEAD.size + LOCK_BYTES + _NEXT.size + _SIZE.size
LARGEST_HEAD: Final = _FIXED + HEAD_BYTES
"""What `Record.size` counts at most beside twice the bytes of the priorities, and those of run data and data."""
_NAN = math.nan
_VERSION_BYTE: Final = bytes((VERSION,))

_OUTCOMES: Final = (None, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED)
_ONE_STATE: Final = tuple(
    (flags & RUNNING > 0) + (flags & READY > 0) + (flags & SCHEDULED > 0) + (flags >> _OUTCOME_SHIFT & 3 > 0) == 1
    and (flags & RUNNING > 0 or not flags & CANCEL)
    for flags in range(256)
)
"""Whether a job with these flags is in exactly one state, and canceled only while it runs."""
_DECODED: Final = tuple(
    (
        flags & _PLACE,
        _OUTCOMES[flags >> _OUTCOME_SHIFT & 3],
        flags & CANCEL > 0,
        not good or flags & (SCHEDULED | RESUBMIT) > 0,
    )
    for flags, good in enumerate(_ONE_STATE)
)
"""Place, outcome and cancel flag by flags; and whether these leave open that something is wrong with the rest."""
_ENDED: Final = {
    outcome: code << _OUTCOME_SHIFT | NOTES for code, outcome in enumerate(_OUTCOMES) if outcome is not None
}
"""The flags of finished jobs."""
_ZERO_PRIORITY: Final = b"\x14"

# Nearly all records are of jobs with the default priority that run or do not: two layouts, each one step.
_USUAL_PRIORITY: Final = len(_ZERO_PRIORITY).to_bytes(2, "big") + _ZERO_PRIORITY
_AT_PRIORITY: Final = slice(_HEAD.size - 2, _HEAD.size + len(_ZERO_PRIORITY))
_USUAL_AT_REST: Final[dict[bytes, tuple[int, Outcome | None]]] = {
    bytes((VERSION, READY | NOTES)): (READY, None),
    **{bytes((VERSION, flags)): (0, outcome) for outcome, flags in _ENDED.items()},
}
_AT_REST_HEAD = struct.Struct(">2x12sd3xI")
_AT_REST_AFTER_STAMP = struct.Struct(">2sd3sI")
_USUAL_RUNNING: Final = bytes((VERSION, RUNNING | NOTES))
_RUNNING_HEAD = struct.Struct(f">2x12sd3x{LOCK_BYTES}sI")
_RUNNING_AFTER_STAMP = struct.Struct(f">2sd3s{LOCK_BYTES}sI")
_LEAST_AT_REST: Final = _AT_REST_HEAD.size + HEAD_BYTES
_LEAST_RUNNING: Final = _RUNNING_HEAD.size + HEAD_BYTES


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
        next: None, or (priority, run_at) of the run after this one: the resubmit flag.
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
        next: tuple[bytes, float | None] | None,
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
        """Derived: running has a lock, finished neither lock nor queue entry, pending is the rest."""
        if self.lock is not None:
            return JobState.RUNNING
        return JobState.PENDING if self.place else JobState.FINISHED

    @property
    def resubmit(self) -> bool:
        """Whether the job becomes pending again when it finishes."""
        return self.next is not None

    @property
    def seq_bytes(self) -> bytes | None:
        """The 12 bytes of seq, None as long as they are not known."""
        seq = self.seq
        if seq.__class__ is bytes:
            return seq
        assert isinstance(seq, NewSeq)
        stamp = seq.stamp.value
        return None if stamp is None else stamp + seq.order

    def size(self) -> int:
        """Return how many bytes the record takes at most until its job has ended: runs, is resubmitted, runs again."""
        # Whichever of the two priorities is the longer one may be that of both runs.
        priority = len(self.priority) if self.next is None else max(len(self.priority), len(self.next[0]))
        return _FIXED + 2 * priority + max(len(self.run_data), HEAD_BYTES) + len(self.json)

    def encoded_size(self) -> int:
        """Return how many bytes the record takes as it is."""
        size = _HEAD.size + len(self.priority) + len(self.json)
        if self.lock is not None:
            size += LOCK_BYTES
        if self.next is not None:
            size += _NEXT.size + len(self.next[0])
        return size + _SIZE.size + len(self.run_data) if self.run_data else size

    def fit(self, limit: int) -> None:
        """Forget the history of a job that would grow over a number of bytes, then its error: they must not stop it."""
        if self.size() > limit:
            self.run_data = runs_of.without_history(self.run_data)
            if self.size() > limit:
                self.run_data = runs_of.with_part(self.run_data, ERROR, None)

    def encode(self) -> bytes:
        """Return the bytes of a record whose seq is known."""
        before, after = self.around_stamp()
        assert isinstance(self.seq, bytes)
        return before + self.seq[:STAMP_BYTES] + after

    def around_stamp(self) -> tuple[bytes, bytes]:
        """Return what is before and what is after the versionstamp."""
        seq, run_data = self.seq, self.run_data
        order = seq.order if seq.__class__ is NewSeq else seq[STAMP_BYTES:]  # type: ignore[index]
        if (
            self.priority == _ZERO_PRIORITY
            and self.run_at is None
            and self.next is None
            and run_data
            and not self.cancel
        ):  # one of the two usual layouts: in one step
            lock, outcome = self.lock, self.outcome
            if lock is None:
                flags = self.place | (NOTES if outcome is None else _ENDED[outcome])
                after = _AT_REST_AFTER_STAMP.pack(order, _NAN, _USUAL_PRIORITY, len(run_data))
                return _BEFORE_STAMP[flags], after + run_data + self.json
            if outcome is None and not self.place:
                after = _RUNNING_AFTER_STAMP.pack(order, _NAN, _USUAL_PRIORITY, lock, len(run_data))
                return _USUAL_RUNNING, after + run_data + self.json
        return self._around_stamp(order)

    def _around_stamp(self, order: bytes) -> tuple[bytes, bytes]:
        """Return what is before and what is after the versionstamp, whatever the record has."""
        flags = self.place
        tail = self.json
        if self.run_data:
            flags |= NOTES
            tail = _SIZE.pack(len(self.run_data)) + self.run_data + tail
        if self.next is not None:
            flags |= RESUBMIT
            priority, next_run_at = self.next
            tail = _NEXT.pack(_NAN if next_run_at is None else next_run_at, len(priority)) + priority + tail
        if self.lock is not None:
            flags |= RUNNING
            tail = self.lock + tail
        if self.cancel:
            flags |= CANCEL
        if self.outcome is not None:
            flags |= _OUTCOMES.index(self.outcome) << _OUTCOME_SHIFT
        run_at = self.run_at
        priority = self.priority
        after = _AFTER_STAMP.pack(
            order,
            _NAN if run_at is None else run_at,
            len(priority),
        )
        return _BEFORE_STAMP[flags], after + priority + tail

    @classmethod
    def decode(cls, raw: bytes, checked: bool = False) -> Record:
        """Return the record that `encode` encoded.

        Args:
            raw: the bytes.
            checked: whether they must also be one that a job can have, so that whatever is done with it succeeds.

        Raises:
            RecordDamaged: the bytes are no record, or one of a newer version.
        """
        if raw[_AT_PRIORITY] == _USUAL_PRIORITY:
            # What `_decode` checks is so here already, but for the lengths and the time.
            kind = raw[:2]
            if kind == _USUAL_RUNNING and len(raw) >= _LEAST_RUNNING:
                seq, run_at, lock, size = _RUNNING_HEAD.unpack_from(raw)
                end = _RUNNING_HEAD.size + size
                if run_at != run_at and size >= HEAD_BYTES and end <= len(raw):
                    run_data = raw[_RUNNING_HEAD.size : end]
                    return cls(lock, 0, seq, _ZERO_PRIORITY, None, None, False, None, raw[end:], run_data)
            elif (rest := _USUAL_AT_REST.get(kind)) is not None and len(raw) >= _LEAST_AT_REST:
                seq, run_at, size = _AT_REST_HEAD.unpack_from(raw)
                end = _AT_REST_HEAD.size + size
                if run_at != run_at and size >= HEAD_BYTES and end <= len(raw):
                    run_data = raw[_AT_REST_HEAD.size : end]
                    place, outcome = rest
                    return cls(None, place, seq, _ZERO_PRIORITY, None, outcome, False, None, raw[end:], run_data)
        return cls._decode(raw, checked)

    @classmethod
    def _decode(cls, raw: bytes, checked: bool) -> Record:
        """Return the record, whatever it has; see `decode`."""
        try:
            version, flags, seq, run_at, size = _HEAD.unpack_from(raw)
            if version != VERSION:
                raise _of_another_version(raw)
            end = _HEAD.size + size
            priority = raw[_HEAD.size : end]
            lock = None
            if flags & RUNNING:
                lock = raw[end : end + LOCK_BYTES]
                end += LOCK_BYTES
            following = None
            if flags & RESUBMIT:
                next_run_at, size = _NEXT.unpack_from(raw, end)
                start = end + _NEXT.size
                end = start + size
                following = (raw[start:end], None if next_run_at != next_run_at else next_run_at)
            run_data = b""
            if flags & NOTES:
                [size] = _SIZE.unpack_from(raw, end)
                start = end + _SIZE.size
                end = start + size
                run_data = raw[start:end]
        except struct.error as error:
            if raw[:1] != _VERSION_BYTE:
                raise _of_another_version(raw) from None
            raise RecordDamaged(f"a job's record is damaged: {error}") from None
        if end > len(raw):
            raise RecordDamaged(f"a job's record is damaged: it has {len(raw)} bytes; its fields take {end}")
        place, outcome, cancel, needs_look = _DECODED[flags]
        if checked and (needs_look or priority != _ZERO_PRIORITY or run_at == run_at or len(run_data) < HEAD_BYTES):
            _check(flags, run_at, run_data)
            _check_run(priority, run_at)
            if following is not None:
                _check_run(following[0], _NAN if following[1] is None else following[1])
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

    @staticmethod
    def salvaged(raw: bytes) -> tuple[bytes, bytes, float] | None:
        """Return what may be seq, priority and run_at of a record that cannot be read; None when it is too short."""
        try:
            _, _, seq, run_at, size = _HEAD.unpack_from(raw)
        except struct.error:
            return None
        return seq, raw[_HEAD.size : _HEAD.size + size], run_at

    # The moves of a job: each returns the next state.

    def pending(self, place: int, seq: NewSeq, priority: bytes, run_at: float | None) -> Record:
        """Return it waiting, its flags as they are."""
        return Record(None, place, seq, priority, run_at, None, False, self.next, self.json, self.run_data)

    def running(self, lock: bytes, seq: NewSeq, run_data: bytes | None = None) -> Record:
        """Return it in the hands of the lock's holder, with other run data if given; also when it was there already."""
        told = self.run_data if run_data is None else run_data
        return Record(lock, 0, seq, self.priority, self.run_at, None, self.cancel, self.next, self.json, told)

    def finished(self, seq: NewSeq, outcome: Outcome, run_data: bytes | None = None) -> Record:
        """Return it ended, with other run data if given; every flag is cleared."""
        told = self.run_data if run_data is None else run_data
        return Record(None, 0, seq, self.priority, self.run_at, outcome, False, None, self.json, told)

    def with_json(self, json: bytes) -> Record:
        """Return it with other data."""
        record = self._copy()
        record.json = json
        return record

    def with_run_data(self, run_data: bytes) -> Record:
        """Return it with other run data."""
        record = self._copy()
        record.run_data = run_data
        return record

    def noted(
        self, kind: HistoryKind, now: float, detail: str = "", *, attempts: int = 0, most: int | None = None
    ) -> Record:
        """Return it with one more event in its history; arguments as for `run_data.noted`."""
        return self.with_run_data(runs_of.noted(self.run_data, kind, now, detail, attempts=attempts, most=most))

    def with_next(self, following: tuple[bytes, float | None] | None) -> Record:
        """Return it with the resubmit flag set or cleared."""
        record = self._copy()
        record.next = following
        return record

    def canceled(self) -> Record:
        """Return it with the cancel flag."""
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


def lock_in(raw: bytes | None) -> bytes | None:
    """Return the lock in a record as stored, without decoding the rest; None if it has none or cannot be read."""
    if raw is None or len(raw) < _HEAD.size or raw[0] != VERSION or not raw[1] & RUNNING:
        return None
    start = _HEAD.size + int.from_bytes(raw[_HEAD.size - 2 : _HEAD.size], "big")
    return raw[start : start + LOCK_BYTES]


def _check(flags: int, run_at: float, run_data: bytes) -> None:
    """Check flags, and what must be there with them."""
    if not _ONE_STATE[flags] or (flags & SCHEDULED and run_at != run_at):
        raise RecordDamaged(f"a job's record is damaged: its flags are {flags:#x}, which no job has")
    if 0 < len(run_data) < HEAD_BYTES:
        raise RecordDamaged(f"a job's record is damaged: its run data have {len(run_data)} bytes")


def _check_run(priority: bytes, run_at: float) -> None:
    """Check priority and time of a run."""
    if not is_priority(priority):
        raise RecordDamaged("a job's record is damaged: a priority that the tuple layer did not pack")
    if run_at == run_at and not EARLIEST <= run_at <= LATEST:
        raise RecordDamaged(f"a job's record is damaged: a time, {run_at}, that no calendar has")


class Unreadable:
    """Stands for a record that cannot be read where jobs are listed: in a state of its own, its error says why.

    Args:
        why: what was met.
    """

    __slots__ = ("run_data",)

    state: Final = JobState.UNREADABLE
    lock: Final = None
    priority: Final = _ZERO_PRIORITY
    run_at: Final = None
    outcome: Final = None
    cancel: Final = False
    resubmit: Final = False
    seq_bytes: Final = None
    json: Final = b""

    def __init__(self, why: RecordDamaged) -> None:
        error = JobError(type(why).__name__, str(why))
        self.run_data = runs_of.with_part(b"", ERROR, runs_of.error_json(error))

    def size(self) -> int:
        """Return nothing: it is never rewritten."""
        return 0


def _of_another_version(raw: bytes) -> RecordDamaged:
    return RecordDamaged(f"a job's record has version {raw[:1].hex() or 'none'}; this version reads 02: upgrade")
