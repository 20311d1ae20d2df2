"""Does the operations of transactions again on the plain model, and complains about each that gave something else.

What the layer reads without a conflict may be as old as the read version: the type's timeout, the scheduled jobs, with
`spread` the front of the queue, and with an open end what comes behind it. The rest is as of the commit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from jobs_service.errors import JobTooLarge, NoTypeTimeout, StoreError, TransactionTooLarge, WorkerConflict
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import LOCK_BYTES
from jobs_service.layer.retention import FOR_EVER, Retention
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.model import UNSET, JobId, JobType, Outcome
from jobs_service.store.base import Limits
from tests.simulation.complaints import called, differences, named, noted, observed, shown, shown_terms
from tests.simulation.damage import is_damage
from tests.simulation.entry import UNOBSERVED, Entry
from tests.simulation.model import Model
from tests.simulation.model_job import OBSERVED, READY, RUNNING, SCHEDULED, Change, Key, ModelJob, column
from tests.simulation.rows import data_key, rows_of

TOLERANCE: Final = 1e-6
"""Seconds by which a sum of times may be off."""

_OFFSET: Final = 4
"""Bytes of a value that gets a versionstamp which say where it goes: FoundationDB counts them."""

_MOST_COMPLAINTS: Final = 200
_ROOM: Final = 200
"""Bytes that a record or a key takes beside what its operation has given."""


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


class Operations:
    """Does operations again, in the order in which they have taken effect.

    Args:
        time: the loop's clock, seconds.
        is_dead: whether the process of an instance of a store has died.

    Attributes:
        model: all jobs and types as they must be now.
        complaints: what was wrong, a line each; the first of many only.
        cells: how often each cell of the operations table has occurred: (operation, what the job was before).
        silences: the jobs that were taken for lost.
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
        self._handlers: dict[str, Callable[[Entry], None]] = {
            "add": self._add,
            "add many": self._add_many,
            "resubmit": self._resubmit,
            "remove": self._remove,
            "update": self._update,
            "finish": self._finish,
            "worker resubmit": self._worker_resubmit,
            "enqueue": self._enqueue,
            "crash": self._crash,
            "stop": self._stop,
            "beat": self._beat,
            "expire": self._expire,
            "pause": self._pause,
            "resume": self._pause,
            "set retention": self._set_retention,
            "make ready": self._make_ready,
            "accept": self._accept,
            "put back": self._put_back,
            "lost": self._lost,
            "bury": self._bury,
            "set timeout": self._set_timeout,
            "clear timeout": self._clear_timeout,
            "cut": self._note_cut,
        }

    def do(self, transaction: Ended, seen_places: int) -> None:
        """Do a transaction's operations.

        Args:
            transaction: it is the present one until the next.
            seen_places: the last move that it can have seen.
        """
        self._transaction = transaction
        self._seen_places = seen_places
        self.own_places = self.model.places
        self.own_types = {}
        self.own_pauses = {}
        self.own_retentions = {}
        self.resumed = {}
        self.taken_away = {}
        self.model.room = transaction.limits.value - _OFFSET
        self.model.left = {}
        self._cut = False
        self._met_damage = any(map(is_damage, transaction.written))
        handlers = self._handlers
        for entry in transaction.journal:
            if entry.id is not None and is_damage(entry.id.encode() if isinstance(entry.id, str) else entry.id):
                continue
            self.count += 1
            handlers[entry.name](entry)

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

    # Creators

    def _add(self, entry: Entry) -> None:
        change, if_exists = entry.arguments
        self._add_one(entry, entry.id, change, if_exists, entry.result)

    def _add_one(self, entry: Entry, id: Any, change: Change, if_exists: str, result: Any) -> Any:
        """Add a job, and return what that must give."""
        key = self.key(entry.type, id)
        job = self.model.jobs.get(key)
        name = "add" if if_exists == "error" else f"add {if_exists}"
        if job is None:
            exists = self._type_may_exist(entry.type)
            type_exists = (result is not NoTypeTimeout) if len(exists) > 1 else True in exists
        else:
            type_exists = True
        self.cells[name, column(job) if type_exists else "no type"] += 1
        if self._failed_for_itself(entry, result, key, change):
            return result
        expected = self.model.add(key, change, if_exists, entry.now, type_exists=type_exists)
        if result is not UNOBSERVED:
            self._check(entry, key, expected, result)
        return expected

    def _add_many(self, entry: Entry) -> None:
        """Add jobs of which one failed: nothing of them is left, if the transaction went on all the same."""
        model = self.model
        position, places, left = len(model.log), model.places, model.left.copy()
        self._try_to_add_many(entry)
        model.undo(position)
        model.places, model.left = places, left

    def _try_to_add_many(self, entry: Entry) -> None:
        wanted, if_exists = entry.arguments
        for id, change in wanted:
            if entry.result is JobTooLarge and self._may_be_too_large(entry, self.key(entry.type, id), change):
                return
            expected = self._add_one(entry, id, change, if_exists, UNOBSERVED)
            if isinstance(expected, type):
                self._check(entry, self.key(entry.type, id), expected, entry.result)
                return
        if not _is_weather(entry.result):
            self.complain(f"{self.who()}: add many to {entry.type!r} gave {shown(entry.result)} for no reason")

    def _resubmit(self, entry: Entry) -> None:
        key, job = self._job(entry)
        (change,) = entry.arguments
        self.cells["resubmit", column(job)] += 1
        if not self._failed_for_itself(entry, entry.result, key, change):
            self._check(entry, key, self.model.resubmit(key, change, entry.now), entry.result)

    def _remove(self, entry: Entry) -> None:
        key, job = self._job(entry)
        (force,) = entry.arguments
        self.cells["remove force" if force else "remove", column(job)] += 1
        if self._failed_for_itself(entry, entry.result, key):
            return
        if job is not None and job.lock is not None:
            if force:
                self._end_lock(entry, key, job.lock)
            if force or not job.cancel:
                self.taken_away[entry.type] = None
        self._check(entry, key, self.model.remove(key, force), entry.result)

    # Workers

    def _enqueue(self, entry: Entry) -> None:
        key, job = self._job(entry)
        change, unique, seconds = entry.arguments
        self.cells["enqueue unique" if unique else "enqueue", column(job)] += 1
        if self._failed_for_itself(entry, entry.result, key, change):
            return
        removed = False
        if job is None:
            exists = self._type_may_exist(entry.type)
            made = rows_of(entry.type).timeout in self._transaction.written
            self._check_made(entry, seconds, made)
            missing = exists == {False} or (len(exists) > 1 and made)
            # One that somebody has removed is not made again.
            removed = missing and any(seconds is not None for _, seconds in self.timeouts.get(entry.type, []))
            removed = entry.result is NoTypeTimeout if len(exists) > 1 else removed
            if missing and not removed:
                self.own_types[entry.type] = seconds
        expected = NoTypeTimeout if removed else self.model.enqueue(key, change, unique, entry.now)
        self._check(entry, key, expected, entry.result)

    def _check_made(self, entry: Entry, seconds: float | None, made: bool) -> None:
        """A type that somebody has made meanwhile stays as it is."""
        past = self.timeouts.get(entry.type, [])
        latest = past[-1][1] if past else None
        others = any(each.name == "set timeout" and each.type == entry.type for each in self._transaction.journal)
        if made and not others and entry.type not in self.own_types and latest not in (None, seconds):
            self.complain(f"{self.who()}: enqueue to {entry.type!r} has overwritten its timeout of {latest}")

    def _update(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, data, progress = entry.arguments
        self.cells["update", column(job, lock)] += 1
        change = Change(_joined(job, data, progress), UNSET, UNSET)
        if not self._failed_for_itself(entry, entry.result, key, change):
            self._check(entry, key, self.model.update(key, lock, data, self._time(), progress), entry.result)

    def _beat(self, entry: Entry) -> None:
        key, job = self._job(entry)
        (lock,) = entry.arguments
        self.cells["beat", column(job, lock)] += 1
        expected = self.model.beat(key, lock, self._time())
        self._check(entry, key, LockStatus.TAKEN if expected is WorkerConflict else expected, entry.result)

    def _finish(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, data, outcome, said = entry.arguments
        whole = _joined(job, data, said.result, said.error)
        self._end(
            entry, Change(whole, UNSET, UNSET), lambda: self.model.finish(key, lock, data, outcome, entry.now, said)
        )

    def _crash(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, said, run_at = entry.arguments
        change = Change(_joined(job, UNSET, said.error), UNSET, UNSET)
        self._end(entry, change, lambda: self.model.crash(key, lock, said, run_at, entry.now))

    def _stop(self, entry: Entry) -> None:
        key, _ = self._job(entry)
        lock, run_at, most, reason = entry.arguments
        self._end(entry, None, lambda: self.model.stop(key, lock, entry.now, run_at, most, reason))

    def _end(self, entry: Entry, change: Change | None, end: Callable[[], Any]) -> None:
        """End a run."""
        key, job = self._job(entry)
        lock = entry.arguments[0]
        self.cells[entry.name, column(job, lock)] += 1
        if self._failed_for_itself(entry, entry.result, key, change):
            return
        if entry.result.__class__ is Record:
            self._end_lock(entry, key, lock)
        self._know_retention(entry.type, entry.result)
        self._check(entry, key, end(), entry.result)

    def _worker_resubmit(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, change = entry.arguments
        self.cells["worker resubmit", column(job, lock)] += 1
        if not self._failed_for_itself(entry, entry.result, key, change):
            self._check(entry, key, self.model.worker_resubmit(key, lock, change, self._time()), entry.result)

    # The queue

    def _make_ready(self, entry: Entry) -> None:
        until, limit = entry.arguments
        self._cut = False
        moved = self._found(entry)
        if not moved:
            return
        model = self.model
        if len(moved) > limit:
            self.complain(f"{self.who()}: make ready of {entry.type!r} moved {len(moved)} jobs, {limit} at most")
        latest = -float("inf")
        for id, record in moved:
            key = self.key(entry.type, id)
            job = model.jobs.get(key)
            self.cells["make ready", column(job)] += 1
            if job is None or job.state is not SCHEDULED or job.run_at is None:
                self.complain(f"{self.who()}: make ready moved {named(*key)}, which is {shown(job)}")
                continue
            if job.run_at > min(until, entry.now):
                early = job.run_at - min(until, entry.now)
                self.complain(f"{self.who()}: make ready moved {named(*key)} {early:g} s before its time")
            if job.run_at < latest:
                self.complain(f"{self.who()}: make ready moved {named(*key)} after one that was due later")
            latest = max(latest, job.run_at)
            self._check(entry, key, model.make_ready(key), record)
        for key in model.scheduled(entry.type):
            left = model.jobs[key]
            if left.run_at is None or left.run_at >= latest:
                return
            if self._was_there(left):
                self.complain(f"{self.who()}: make ready left {named(*key)} out, and moved jobs that are due later")

    def _accept(self, entry: Entry) -> None:
        terms: AcceptTerms = entry.arguments[0]
        taken = self._found(entry)
        cut, self._cut = self._cut, False
        if taken is None:
            return
        due_by = entry.now if terms.due_by is None else terms.due_by
        if self._is_paused(entry.type):
            if taken:
                self.complain(
                    f"{self.who()}: accept of {entry.type!r}, which is paused, took {[id for id, _ in taken]}"
                )
        elif terms.spread == 1 or entry.type in self.in_order:
            self._check_exact(entry, terms, due_by, taken, cut)
        else:
            self._check_spread(entry, terms, due_by, taken, cut)
        for id, record in taken:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            if job is not None and job.pending:
                self._take(entry, key, job, due_by, record, terms)

    def _check_exact(
        self, entry: Entry, terms: AcceptTerms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        limit = max(1, min(len(taken), terms.limit)) if cut else terms.limit
        if self._met_damage:  # A look that takes damaged jobs out of the queue may end with fewer: another one follows.
            limit = min(limit, len(taken))
        expected = self.model.first(entry.type, limit, terms.max_priority, due_by, entry.now)
        got = [id for id, _ in taken]
        if terms.open_end:
            # Those that came in behind the last one taken, after the read version, need not be known.
            while len(expected) > len(got) and not self._was_there(self.model.jobs[expected[-1][1]]):
                expected.pop()
        if got != [key[1] for _, key in expected]:
            self.complain(
                f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {got}, "
                f"expected {[key[1] for _, key in expected]}"
            )

    def _check_spread(
        self, entry: Entry, terms: AcceptTerms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        """Every job taken must be among the first `spread` that were left when it was chosen."""
        due = self.model.due(entry.type, terms.max_priority, due_by, entry.now)
        # What became pending after the read version was not seen; what was seen but is gone by now, is not known.
        seen = [key for _, key in due if self._was_there(self.model.jobs[key])]
        wanted = min(terms.limit, len(seen))
        if self._met_damage:
            wanted = min(wanted, len(taken))
        if len(taken) > terms.limit or (len(taken) < wanted and not (cut and taken)):
            self.complain(
                f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {len(taken)} jobs, "
                f"expected {wanted}"
            )
        for id, _ in taken:
            key = (entry.type, id)
            if key not in islice(seen, terms.spread):
                job = self.model.jobs.get(key)
                self.complain(
                    f"{self.who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {id!r}, which is "
                    f"{shown(job)}; the first were {[key[1] for key in seen[: terms.spread]]}"
                )
            if key in seen:
                seen.remove(key)

    def _take(self, entry: Entry, key: Key, job: ModelJob, due_by: float, record: Any, terms: AcceptTerms) -> None:
        """Give an accepted job its lock."""
        self.cells["accept", "pending"] += 1
        if job.run_at is not None and job.run_at > max(due_by, entry.now):
            self.complain(f"{self.who()}: accept took {named(*key)} before its time")
        lock = record.lock if record.__class__ is Record else None
        if lock is None or len(lock) != LOCK_BYTES or not any(lock):
            self.complain(f"{self.who()}: accept gave {named(*key)} no lock, but {lock!r}")
            lock = lock or b""
        elif lock in self._locks:
            self.complain(f"{self.who()}: accept gave {named(*key)} a lock that was given before")
        self._locks[lock] = "held"
        accepted = self.model.accept(key, lock, self._time(), entry.now, terms.worker, terms.max_history)
        self._check(entry, key, accepted, record)

    def _put_back(self, entry: Entry) -> None:
        """An accept has met too many jobs that a clock ahead of its own has made ready."""
        terms: AcceptTerms = entry.arguments[0]
        moved = self._found(entry) or []
        if len(moved) > terms.make_ready:
            self.complain(
                f"{self.who()}: accept of {entry.type!r} put {len(moved)} jobs back, {terms.make_ready} at most"
            )
        latest = entry.now if terms.due_by is None else max(terms.due_by, entry.now)
        for id, record in moved:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            self.cells["put back", column(job)] += 1
            if job is None or job.state is not READY or job.run_at is None or job.run_at <= latest:
                self.complain(f"{self.who()}: accept put {named(*key)} back, which is {shown(job)}, at {latest}")
                continue
            self._check(entry, key, self.model.put_back(key), record)

    # Lost jobs

    def _lost(self, entry: Entry) -> None:
        until, limit = entry.arguments
        lost = self._found(entry)
        if not lost:
            return
        if len(lost) > limit:
            self.complain(f"{self.who()}: {len(lost)} jobs of {entry.type!r} were taken for lost, {limit} at most")
        now = self._time()
        timeout = self.model.timeouts.get(entry.type)
        for id, record in lost:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            if job is None or job.state is not RUNNING or job.lock is None or job.active_at is None:
                self.complain(f"{self.who()}: {named(*key)} was taken for lost, but is {shown(job)}")
                continue
            self.cells["lost", column(job)] += 1
            silent = now - job.active_at
            self.silences.append(Silence(now, *key, silent, timeout))
            if timeout is None or silent < timeout - TOLERANCE:
                self.complain(
                    f"{self.who()}: {named(*key)} was taken for lost after {silent:.6f} s of silence; "
                    f"its type's timeout is {timeout}"
                )
            if self.seqs.get(key, b"")[: len(until)] > until:
                self.complain(f"{self.who()}: {named(*key)} was taken for lost, but was active after {until.hex()}")
            self._end_lock(entry, key, job.lock)
            self.taken_away[entry.type] = None
            self._know_retention(entry.type, record)
            self._check(entry, key, self.model.lose(key, entry.now), record)

    def _bury(self, entry: Entry) -> None:
        """A job was taken from a process that has died."""
        key, job = self._job(entry)
        (dead,) = entry.arguments
        if job is None or job.lock is None or not any(job.lock.startswith(each) for each in dead):
            self.complain(f"{self.who()}: {named(*key)} was taken from the dead {dead}, but is {shown(job)}")
            return
        for instance in dead:
            if not self._is_dead(instance):
                self.complain(f"{self.who()}: {instance.hex()} was taken for dead, but lives")
        self.cells["bury", column(job)] += 1
        self._end_lock(entry, key, job.lock)
        self.taken_away[entry.type] = None
        self._know_retention(entry.type, entry.result)
        self._check(entry, key, self.model.lose(key, entry.now), entry.result)

    # Expired jobs

    def _expire(self, entry: Entry) -> None:
        until, limit = entry.arguments
        gone = self._found(entry) or []
        if len(gone) > limit:
            self.complain(f"{self.who()}: {len(gone)} jobs of {entry.type!r} have expired, {limit} at most")
        for id, _ in gone:
            key = self.key(entry.type, id)
            job = self.model.jobs.get(key)
            self.cells["expire", column(job)] += 1
            expires = None if job is None else job.notes.expires
            if expires is None or expires > min(until, entry.now):
                self.complain(f"{self.who()}: {named(*key)} was removed as expired, but is {shown(job)}")
            if job is not None:
                self.model.remove(key, False)

    # Types

    def _set_timeout(self, entry: Entry) -> None:
        if entry.result is None:
            (seconds,) = entry.arguments
            self.own_types[entry.type] = seconds
        elif entry.result is not JobTooLarge and not _is_weather(entry.result):
            self.complain(f"{self.who()}: set timeout of {entry.type!r} gave {shown(entry.result)}")

    def _clear_timeout(self, entry: Entry) -> None:
        if entry.result is None:
            self.own_types[entry.type] = None
        elif entry.result is not JobTooLarge and not _is_weather(entry.result):
            self.complain(f"{self.who()}: clear timeout of {entry.type!r} gave {shown(entry.result)}")

    def _pause(self, entry: Entry) -> None:
        if entry.result is None:
            self.own_pauses[entry.type] = entry.name == "pause"
            if entry.name == "resume":
                self.resumed[entry.type] = None
        elif entry.result is not JobTooLarge and not _is_weather(entry.result):
            self.complain(f"{self.who()}: {entry.name} of {entry.type!r} gave {shown(entry.result)}")

    def _set_retention(self, entry: Entry) -> None:
        if entry.result is None:
            (self.own_retentions[entry.type],) = entry.arguments
        elif entry.result is not JobTooLarge and not _is_weather(entry.result):
            self.complain(f"{self.who()}: set retention of {entry.type!r} gave {shown(entry.result)}")

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
            self.model.retentions[type] = self.own_retentions[type]
            return
        past = self.retentions.get(type, [])
        place = bisect_right(past, self._transaction.version, key=_version_of)
        may_be = [retention for _, retention in past[max(place - 1, 0) :]] + ([FOR_EVER] if place == 0 else [])
        if len(may_be) > 1 and result.__class__ is Record and result.outcome is not None:
            told = noted(result.run_data)
            kept = None if told.expires is None or not told.history else told.expires - told.history[0][1]
            failed = result.outcome is Outcome.FAILED
            may_be = [each for each in may_be if _close(each[failed], kept)] or may_be
        self.model.retentions[type] = may_be[-1]

    def _note_cut(self, entry: Entry) -> None:
        self._cut = True

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
        return key, self.model.jobs.get(key)

    def _was_there(self, job: ModelJob) -> bool:
        """Whether the transaction can have seen a job where it is now."""
        return job.place <= self._seen_places or job.place > self.own_places

    def _found(self, entry: Entry) -> list[tuple[JobId, Any]] | None:
        """Return the jobs that an operation on a queue has found, None when it has failed."""
        if isinstance(entry.result, list):
            return entry.result
        if not _is_weather(entry.result):
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
        return _is_weather(result)

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
        return size > limits.key or data + told + 2 * priority + _ROOM > limits.value


def _joined(job: ModelJob | None, data: Any, *parts: Any) -> bytes:
    """Return the new data of a job, or what it has, with the parts that are written beside it."""
    if data is UNSET:
        data = b"" if job is None or job.data is UNSET else job.data
    return b"".join((data, *(part for part in parts if isinstance(part, bytes))))


def _is_weather(result: Any) -> bool:
    """Whether a result is an error of the store that says nothing of jobs."""
    if not isinstance(result, type) or not issubclass(result, StoreError):
        return False
    return result.retryable or issubclass(result, TransactionTooLarge)


def _close(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else abs(one - other) < TOLERANCE


def _version_of(entry: tuple[int, Any]) -> int:
    return entry[0]
