"""What all operations that are done again share: the model, what was true since the read version, the comparison."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, Final, NamedTuple, Protocol

from jobs_service.errors import JobTooLarge, StoreError, TransactionTooLarge
from jobs_service.layer.record import Record
from jobs_service.model import UNSET, JobId, JobType, Outcome
from jobs_service.model.type_state import FOR_EVER, Retention
from jobs_service.store.base import Limits
from tests.simulation.complaints import called, differences, named, noted, observed, shown
from tests.simulation.entry import Entry
from tests.simulation.model import Model
from tests.simulation.model_job import OBSERVED, Change, Key, ModelJob
from tests.simulation.rows import data_key, is_damage

TOLERANCE: Final = 1e-6
"""Seconds by which a sum of times may be off."""

_MOST_COMPLAINTS: Final = 200
_ROOM: Final = 200
"""Bytes that a record or a key takes beside what its operation has given."""

_SHARE_OF_END: Final = 32
"""Of the room for a job's record, this part is kept for its end."""


class Ended(Protocol):
    """What the history reads of a transaction that has ended well."""

    @property
    def journal(self) -> Sequence[Any]: ...
    @property
    def version(self) -> int: ...
    @property
    def commit_version(self) -> int | None: ...
    @property
    def written(self) -> Mapping[bytes, bytes | None]: ...
    @property
    def process(self) -> Any: ...
    @property
    def limits(self) -> Limits: ...


class Silence(NamedTuple):
    """A job that was taken for lost.

    Attributes:
        time: when, on the loop's clock, seconds.
        type, id: the job.
        silent: seconds since its worker's last sign of life.
        timeout: of its type, seconds.
    """

    time: float
    type: JobType
    id: JobId
    silent: float
    timeout: float | None


class Replay:
    """What the operations that were done so far have made of the model, and how one is compared with it.

    Args:
        time: the loop's clock, seconds.
        is_dead: whether the process of an instance of a store has died.

    Attributes:
        model: all jobs and types as they must be now.
        complaints: what was wrong, a line each; the first of many only.
        cells: how often each cell of the operations table has occurred: (operation, what the job was before).
        silences: the jobs that were taken for lost.
        heard: those of whose workers something was heard, and the seconds in which nothing was.
        count: how many operations were done.
        keys: of every job seen: its DATA key.
        jobs: the same the other way round.
        timeouts: of every type, what its timeout was from which commit on; None when it was cleared.
        seqs: of every job, the seq that is stored.
        own_places: the last move before the present transaction.
        own_types: the timeouts that the present transaction has changed.
        own_pauses: the types that it has paused (True) or resumed.
        own_retentions: how long finished jobs are kept, where it has changed that.
        pauses: of every type, whether it was paused from which commit on.
        retentions: of every type, how long finished jobs were kept from which commit on.
        resumed: the types that the present transaction has resumed.
        taken_away: those of whose running jobs it has canceled some, or taken from their workers.
        in_order: the types whose jobs are accepted in exact order, whoever collides.
    """

    def __init__(self, time: Callable[[], float], is_dead: Callable[[bytes], bool]) -> None:
        self.model = Model()
        self.complaints: list[str] = []
        self.cells: Counter[tuple[str, str]] = Counter()
        self.silences: list[Silence] = []
        self.heard: list[Silence] = []
        self.count = 0
        self.keys: dict[Key, bytes] = {}
        self.jobs: dict[bytes, Key] = {}
        self.timeouts: dict[JobType, list[tuple[int, float | None]]] = {}
        self.seqs: dict[Key, bytes] = {}
        self.own_places = 0
        self.own_types: dict[JobType, float | None] = {}
        self.own_pauses: dict[JobType, bool] = {}
        self.own_retentions: dict[JobType, Retention] = {}
        self.pauses: dict[JobType, list[tuple[int, bool]]] = {}
        self.retentions: dict[JobType, list[tuple[int, Retention]]] = {}
        self.resumed: dict[JobType, None] = {}
        self.taken_away: dict[JobType, None] = {}
        self.in_order: set[JobType] = set()
        self._time = time
        self._is_dead = is_dead
        self._locks: dict[bytes, str] = {}
        self._transaction: Ended
        # The last move that the present transaction can have seen, and whether not all that was found did fit.
        self._seen_places = 0
        self._cut = False
        self._met_damage = False

    def key(self, type: JobType, id: JobId) -> Key:
        """Return how the model names a job."""
        key = (type, id)
        if key not in self.keys:
            packed = self.keys[key] = data_key(type, id)
            self.jobs[packed] = key
        return key

    def who(self) -> str:
        """Return which transaction is the present one, and whose."""
        transaction = self._transaction
        if transaction.commit_version is None:
            place = f"read version {transaction.version}"
        else:
            place = f"commit {transaction.commit_version}"
        return f"{place} by {transaction.process or 'nobody'}"

    def complain(self, complaint: str) -> None:
        """Add a complaint."""
        if len(self.complaints) < _MOST_COMPLAINTS:
            self.complaints.append(complaint)

    def _is_paused(self, type: JobType) -> bool:
        """Return whether nobody may accept: as of the commit, as it is read with a conflict."""
        if type in self.own_pauses:
            return self.own_pauses[type]
        past = self.pauses.get(type, [])
        if self._transaction.commit_version is None:
            past = past[: bisect_right(past, self._transaction.version, key=_version_of)]
        return past[-1][1] if past else False

    def _know_retention(self, type: JobType, result: Any) -> None:
        """Tell the model how long jobs are kept: as at any time from the read version to now, for it is a snapshot."""
        if type in self.own_retentions:
            self.model.retentions[type] = astuple(self.own_retentions[type])
            return
        past = self.retentions.get(type, [])
        place = bisect_right(past, self._transaction.version, key=_version_of)
        may_be = [astuple(kept) for kept in [each for _, each in past[max(place - 1, 0) :]] + [FOR_EVER] * (place == 0)]
        if len(may_be) > 1 and result.__class__ is Record and result.outcome is not None:
            told = noted(result.run_data)
            kept = None if told.expires is None or not told.history else told.expires - told.history[0][1]
            failed = result.outcome is Outcome.FAILED
            may_be = [each for each in may_be if _close(each[failed], kept)] or may_be
        self.model.retentions[type] = may_be[-1]

    def _type_may_exist(self, type: JobType) -> set[bool]:
        """Return whether the type existed at any time from the read version to now: it is read by snapshot."""
        if type in self.own_types:
            return {self.own_types[type] is not None}
        past = self.timeouts.get(type, [])
        place = bisect_right(past, self._transaction.version, key=_version_of)
        if self._transaction.commit_version is None:
            past = past[:place]
        return {seconds is not None for _, seconds in past[max(place - 1, 0) :]} | ({False} if place == 0 else set())

    # Parts

    def _job(self, entry: Entry) -> tuple[Key, ModelJob | None]:
        assert entry.id is not None
        key = self.key(entry.type, entry.id)
        job = self.model.jobs.get(key)
        if job is not None and job.active_at is not None and job.lock in entry.arguments[:1]:
            now = self._time()
            self.heard.append(Silence(now, *key, now - job.active_at, self.model.timeouts.get(entry.type)))
        return key, job

    def _was_there(self, job: ModelJob) -> bool:
        """Whether the transaction can have seen a job where it is now."""
        return job.place <= self._seen_places or job.place > self.own_places

    def _found(self, entry: Entry) -> list[tuple[JobId, Any]] | None:
        """Return the jobs that an operation on a queue has found, None when it has failed; none that were damaged."""
        if isinstance(entry.result, list):
            return [each for each in entry.result if not (isinstance(each[0], str) and is_damage(each[0].encode()))]
        if not is_weather(entry.result):
            self.complain(f"{self.who()}: {entry.name} of {entry.type!r} gave {shown(entry.result)}")
        return None

    def _check(self, entry: Entry, key: Key, expected: Any, got: Any) -> None:
        """Compare what an operation has given with what it must give."""
        if expected.__class__ is ModelJob:
            if got.__class__ is Record and expected[:OBSERVED] == observed(got)[:OBSERVED]:
                return
            differs = f": {differences(expected, got)}" if got.__class__ is Record else f", got {shown(got)}"
        elif got is expected:
            return
        else:
            differs = f", got {shown(got)}"
        self.complain(f"{self.who()}: {called(entry)} of {named(*key)}: expected {shown(expected)}{differs}")

    def _end_lock(self, entry: Entry, key: Key, lock: bytes) -> None:
        held = self._locks.get(lock)
        if held != "held":
            said = "was never given" if held is None else f"was ended before, by {held}"
            self.complain(f"{self.who()}: {called(entry)} of {named(*key)} ended a lock that {said}")
        self._locks[lock] = f"{entry.name} in {self.who()}"

    def _failed_for_itself(self, entry: Entry, result: Any, key: Key, change: Change | None = None) -> bool:
        """Whether an operation failed for a reason that the model knows nothing of: it then has changed nothing."""
        if result.__class__ is not type:
            return False
        if result is JobTooLarge:
            return self._may_be_too_large(entry, key, change)
        return is_weather(result)

    def _may_be_too_large(self, entry: Entry, key: Key, change: Change | None) -> bool:
        job = self.model.jobs.get(key)
        limits = self._transaction.limits
        data = priority = told = 0
        for part in (job, change):
            if part is not None:
                data = max(data, 0 if part.data is UNSET else len(part.data))
                told += part.notes.size() if part.__class__ is ModelJob else 0
                priority = max(priority, 0 if part.priority is UNSET else len(part.priority))
        if job is not None and job.next is not None:
            priority = max(priority, len(job.next[0]))
        size = len(self.keys[key]) + priority + _ROOM
        kept = limits.value // _SHARE_OF_END
        return size > limits.key or data + told + 2 * priority + _ROOM + kept > limits.value


def is_weather(result: Any) -> bool:
    """Whether a result is an error of the store that says nothing of jobs."""
    if not isinstance(result, type) or not issubclass(result, StoreError):
        return False
    return result.retryable or issubclass(result, TransactionTooLarge)


def version_in(stamp: bytes) -> int:
    """Return the version of the simulated cluster in a versionstamp."""
    return int.from_bytes(stamp[:8], "big")


def _close(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else abs(one - other) < TOLERANCE


def _version_of(entry: tuple[int, Any]) -> int:
    return entry[0]
