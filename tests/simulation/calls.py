"""What the workloads ask of the service, call by call, and whether the answers fit what was committed.

Every call that writes carries its number in the data that it writes, or names a lock: so it is known to whom each
committed operation belongs. An answer must come of exactly one committed operation, which took effect while the caller
waited: that makes the history strictly serializable, and every effect exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import fdb.tuple

from jobs_service import Job, JobId, JobType, Removal
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import Record
from jobs_service.model import UNSET, JobState
from jobs_service.testing import SimulatedTransaction
from tests import reader
from tests.simulation.entry import Entry
from tests.simulation.model_job import Change

OK = "ok"
UNKNOWN = "unknown"
"""The outcome of a call that nobody answered, or whose write may still take effect."""

STOP_AND_REMOVE = "stop and remove"
"""The name of calls that remove a job as often as it takes."""

_PLACE_OF_CHANGE = {"worker resubmit": 1}
_USUAL_PRIORITY = b"\x14"
_NUMBER = b'{"call":'
_ADDING = frozenset({"add", "enqueue", "resubmit"})
_NUMBERED = frozenset({"add", "enqueue", "resubmit", "update", "finish", "worker resubmit"})


@dataclass(slots=True)
class Call:
    """One call of the public interface.

    Attributes:
        number: unique in the run.
        name: of the operation.
        type, id: of the job; id is None for those that name none.
        process: who called.
        version: the cluster's version when it was called.
        outcome: OK, UNKNOWN, or the class of the error.
        last_version: the cluster's version when it was answered.
        result: what was answered.
        locks: the locks that it used or got.
        record: what the job was after the operation, as far as it is known.
        asked: the priority and run_at that its options name, as a Change; None when they are not known.
        given: the same as the service has understood it.
        wanted: the max_priority (packed), due_by and spread (None for an adaptive one) of an accept, if they are known.
        effects: (version, whether anything was written) of the transactions in which it was carried out.
    """

    number: int
    name: str
    type: JobType
    id: JobId | None
    process: str
    version: int
    outcome: str = UNKNOWN
    last_version: int | None = None
    result: Any = None
    locks: tuple[bytes, ...] = ()
    record: Record | None = None
    effects: list[tuple[int, bool]] = field(default_factory=list)
    asked: Change | None = None
    given: Change | None = None
    wanted: tuple[bytes | None, float | None, int | None] | None = None

    def __str__(self) -> str:
        return f"call {self.number} of {self.process}, {self.name} {self.type!r}/{self.id!r} ({self.outcome})"

    def could_be(self, version: int, wrote: bool) -> bool:
        """Whether a transaction at this version was committed while the caller waited."""
        began = version > self.version if wrote else version >= self.version
        return began and (self.last_version is None or version <= self.last_version)


class _Accepted(NamedTuple):
    """What an accept has given to a worker.

    Attributes:
        version: of the commit.
        terms: of the accept, as the service has understood them.
        id: of the job.
        record: of the job, as it runs.
        place: among those that were accepted together.
        together: what was accepted with it.
    """

    version: int
    terms: AcceptTerms
    id: JobId
    record: Record
    place: int
    together: list[Any]


class Calls:
    """All calls of a run, and what each of them caused. An observer of the cluster.

    Args:
        quick_since: returns since when nothing takes time, on the loop's clock, seconds.
        time: returns the loop's clock, seconds.
    """

    def __init__(self, quick_since: Callable[[], float], time: Callable[[], float]) -> None:
        self._quick_since = quick_since
        self._time = time
        self.all: list[Call] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._removals: dict[tuple[JobType, JobId], list[tuple[int, bool, Removal]]] = {}
        self._accepted: dict[bytes, _Accepted] = {}
        self._accepted_at: dict[bytes, float] = {}
        self._held: dict[tuple[JobType, JobId], bytes] = {}
        self._lost: dict[bytes, JobId] = {}
        self._released: dict[bytes, list[tuple[int, bool]]] = {}
        self._after_release: dict[bytes, Record] = {}

    def begin(self, name: str, type: JobType, id: JobId | None, process: object, version: int) -> Call:
        """Note that a call begins, and return it."""
        call = Call(len(self.all), name, type, id, str(process), version)
        self.all.append(call)
        return call

    def end(self, call: Call, outcome: str, version: int, result: Any = None) -> None:
        """Note what came of a call."""
        call.outcome = outcome
        call.result = result
        if outcome != UNKNOWN:
            call.last_version = version
        self.outcomes[call.name, outcome] += 1

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        wrote = transaction.commit_version is not None
        version = transaction.version if transaction.commit_version is None else transaction.commit_version
        for entry in transaction.journal:
            if isinstance(entry.result, type):
                continue
            if entry.name in _NUMBERED:
                number = _number(entry)
                if number is not None:
                    call = self.all[number]
                    call.effects.append((version, wrote))
                    call.record = entry.result if isinstance(entry.result, Record) else None
                    change = entry.arguments[_PLACE_OF_CHANGE.get(entry.name, 0)]
                    call.given = change if isinstance(change, Change) else None
            elif entry.name == "remove":
                self._removals.setdefault((entry.type, entry.id), []).append((version, wrote, entry.result))
            elif entry.name == "stop":
                self._released.setdefault(entry.arguments[0], []).append((version, wrote))
                if isinstance(entry.result, Record):
                    self._after_release[entry.arguments[0]] = entry.result
            elif entry.name == "accept":
                for place, (id, record) in enumerate(entry.result):
                    self._accepted[record.lock] = _Accepted(
                        version, entry.arguments[0], id, record, place, entry.result
                    )
                    self._held[entry.type, id] = record.lock
                    self._accepted_at[record.lock] = self._time()
            elif entry.name == "lost":
                lost = {self._held[entry.type, id]: id for id, _ in entry.result}
                quick = self._quick_since()
                self._lost.update({lock: id for lock, id in lost.items() if quick <= self._accepted_at[lock]})

    def removed(self, type: JobType, id: JobId) -> list[int]:
        """Return the versions at which a job was removed, or asked to end."""
        return [version for version, wrote, _ in self._removals.get((type, id), ()) if wrote]

    def added(self, type: JobType, id: JobId) -> list[int]:
        """Return the versions at which a job was added, or asked to run again."""
        calls = [call for call in self.all if (call.type, call.id) == (type, id) and call.name in _ADDING]
        return [version for call in calls for version, wrote in call.effects if wrote]

    def complaints(self) -> Iterator[str]:
        """Yield what does not fit."""
        for call in self.all:
            if call.name in _NUMBERED:
                yield from self._of_numbered(call)
            elif call.name == "accept" and call.outcome == OK:
                yield from self._of_accept(call)
            elif call.name == "release":
                call.effects = self._released.get(call.locks[0], [])
                call.record = self._after_release.get(call.locks[0])
                yield from self._of_numbered(call)
        yield from self._of_locks()
        for (type, id), removals in self._removals.items():
            calls = [call for call in self.all if call.type == type and call.id == id]
            yield from _of_removals(type, id, calls, removals)

    def _of_numbered(self, call: Call) -> Iterator[str]:
        if len(call.effects) > 1:
            yield f"twice: {call} was carried out at {call.effects}"
        if call.outcome == OK and not call.effects:
            yield f"no effect: {call} was answered, but never carried out"
        # One that changes nothing may be tried, and fail when it is tried again beside others.
        if call.outcome not in (OK, UNKNOWN) and any(wrote for _, wrote in call.effects):
            yield f"refused: {call} failed, but was carried out at {call.effects}"
        if isinstance(call.result, Job) and call.record is not None and len(call.effects) == 1:
            answered, done = _answered(call.result), _done(call.record)
            if answered != done:
                yield f"answer: {call} was answered {answered}, but did {done}"
        if call.asked is not None and call.given is not None:
            for what in ("priority", "run_at"):
                wanted, given = getattr(call.asked, what), getattr(call.given, what)
                if given != wanted and not (wanted is UNSET and given in (_USUAL_PRIORITY, None)):
                    yield f"asked: {call} asked for {what} {wanted!r}, and the service has understood {given!r}"
        for version, wrote in call.effects:
            if not call.could_be(version, wrote):
                yield f"out of time: {call} was carried out at {version}, not in {call.version}..{call.last_version}"

    def _of_accept(self, call: Call) -> Iterator[str]:
        last: _Accepted | None = None
        for lock in call.locks:
            found = self._accepted.get(lock)
            if found is None:
                yield f"no effect: {call} gave the lock {lock.hex()}, which was never committed"
                continue
            version, terms = found.version, found.terms
            if not call.could_be(version, True):
                yield f"out of time: {call} was carried out at {version}, not in {call.version}..{call.last_version}"
            elif call.wanted is not None:
                spread = call.wanted[2]
                if call.wanted[:2] != (terms.max_priority, terms.due_by) or spread not in (None, terms.spread):
                    yield f"asked: {call} asked for jobs up to {call.wanted}, and the service has understood {terms}"
            if last is not None and last.together is found.together and last.place >= found.place:
                yield f"order: {call} was answered {found.id!r} after {last.id!r}, which was behind it"
            last = found
        for job in call.result if isinstance(call.result, list) else ():
            accepted = self._accepted.get(job.lock)
            if accepted is not None and (accepted.id, _done(accepted.record)) != (job.id, _answered(job)):
                took = f"{accepted.id!r}, {_done(accepted.record)}"
                yield f"answer: {call} was answered {job.id!r}, {_answered(job)}, but took {took}"

    def _of_locks(self) -> Iterator[str]:
        holders: dict[bytes, Call] = {}
        for call in self.all:
            if call.name != "accept":
                continue
            for lock in call.locks:
                if lock in holders:
                    yield f"two holders: {call} and {holders[lock]} got the lock {lock.hex()}"
                holders[lock] = call
        for lock, id in self._lost.items():
            # No process has died, and nothing has taken time: somebody gets each job, or it is given back at once.
            if lock not in holders:
                yield f"stranded: {id!r} was accepted with the lock {lock.hex()} for nobody, until it was lost"


def asked(options: Mapping[str, Any], now: float) -> Change:
    """Return what the options of a call ask for, of the next run of its job.

    Args:
        options: of the call.
        now: by the clock of the caller's process as it calls, seconds since the epoch.
    """
    priority, run_at, delay = options.get("priority", UNSET), options.get("run_at", UNSET), options.get("delay")
    if delay is not None:
        run_at = now + (delay.total_seconds() if isinstance(delay, timedelta) else delay)
    if isinstance(run_at, datetime):
        run_at = run_at.timestamp()
    return Change(UNSET, priority if priority is UNSET else fdb.tuple.pack((priority,)), run_at)


def _answered(job: Job) -> tuple[Any, ...]:
    """Return what an answer says of a job."""
    error = job.error
    return (
        job.state,
        job.data,
        job.outcome,
        bool(job.resubmit),
        job.cancel,
        fdb.tuple.pack((job.priority,)),
        job.run_at,
        job.attempts,
        tuple((event.kind.value, event.at, event.detail) for event in job.history),
        job.result,
        None if error is None else [error.type, error.message, error.traceback],
        job.max_attempts,
        job.time_limit,
        job._record.lock,
    )


def _done(record: Record) -> tuple[Any, ...]:
    """Return the same of a record."""
    told = reader.notes(record.run_data)
    return (
        JobState.RUNNING if record.lock is not None else JobState.PENDING if record.place else JobState.FINISHED,
        reader.value_of(record.json),
        record.outcome,
        record.next is not None,
        record.cancel,
        record.priority,
        None if record.run_at is None else datetime.fromtimestamp(record.run_at, UTC),
        told.attempts,
        told.history,
        reader.value_of(told.result or b""),
        reader.value_of(told.error or b""),
        *reader.value_of(told.limits or b"[null,null]"),
        record.lock,
    )


def _number(entry: Entry) -> int | None:
    """Return the number of the call that this operation belongs to."""
    argument = entry.arguments[1 if entry.name in ("update", "finish", "worker resubmit") else 0]
    json = getattr(argument, "data", argument)
    if isinstance(json, bytes) and json.startswith(_NUMBER):
        return int(json[len(_NUMBER) :].split(b",", 1)[0].rstrip(b"}"))
    return None


def _of_removals(
    type: JobType, id: JobId, calls: list[Call], removals: list[tuple[int, bool, Removal]]
) -> Iterator[str]:
    """Match calls and committed removals, which carry no number: each answer needs one of its own in its time."""
    # The earliest end first, and for each the earliest removal that fits: if any matching fits all, this one does.
    left = sorted(removals, key=lambda removal: removal[0])
    answered = [call for call in calls if call.name == "remove" and call.outcome == OK]
    for call in sorted(answered, key=lambda call: call.last_version or 0):
        for removal in left:
            if removal[2] is call.result and call.could_be(removal[0], removal[1]):
                left.remove(removal)
                break
        else:
            yield f"no effect: {call} was answered {call.result}, but that was not carried out in its time: {removals}"
    unknown = [call for call in calls if call.name == "remove" and call.outcome == UNKNOWN]
    # Each of these removes as often as it takes.
    stopping = [call for call in calls if call.name == STOP_AND_REMOVE]
    for version, wrote, result in left:
        if any(call.could_be(version, wrote) for call in stopping):
            continue
        owner = next((call for call in unknown if call.could_be(version, wrote)), None)
        if owner is None:
            yield f"twice: a removal ({result}) of {type!r}/{id!r} at {version} belongs to no call"
        else:
            unknown.remove(owner)
