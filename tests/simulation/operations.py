"""Does the operations of transactions again on the plain model, and complains about each that gave something else.

What the layer reads without a conflict may be as old as the read version: the type's timeout, the scheduled jobs, with
`spread` the front of the queue, and with an open end what comes behind it. The rest is as of the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jobs_service.errors import JobTooLarge, NoTypeTimeout, WorkerConflict
from jobs_service.layer.record import Record
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.model import UNSET, JobType
from tests.simulation.complaints import shown
from tests.simulation.entry import UNOBSERVED, Entry
from tests.simulation.model_job import Change, ModelJob, column
from tests.simulation.read_operations import ReadOperations
from tests.simulation.replay import Ended, is_weather
from tests.simulation.rows import is_damage, rows_of
from tests.simulation.tallies import Tallies

_OFFSET: Final = 4
"""Bytes of a value that gets a versionstamp which say where it goes: FoundationDB counts them."""


class Operations(ReadOperations):
    """Does operations again, in the order in which they have taken effect; see Replay."""

    def __init__(self, time: Callable[[], float], is_dead: Callable[[bytes], bool]) -> None:
        super().__init__(time, is_dead)
        # The types that were ever made, and those that the present transaction has made: some are gone again.
        self._made: set[JobType] = set()
        self._own_made: set[JobType] = set()
        self.tallies = Tallies(self.model.jobs, lambda: self.model.left)
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
            "give up": self._give_up,
            "beat": self._beat,
            "expire": self._expire,
            "pause": self._pause,
            "resume": self._pause,
            "set retention": self._set_retention,
            "make ready": self._make_ready,
            "set right": self._set_right,
            "accept": self._accept,
            "put back": self._put_back,
            "lost": self._lost,
            "bury": self._bury,
            "set timeout": self._set_timeout,
            "clear timeout": self._clear_timeout,
            "cut": self._note_cut,
            "enqueue many": self._enqueue_many,
            "saw job": self._saw_job,
            "saw list": self._saw_list,
            "saw running": self._saw_running,
            "saw count": self._saw_count,
            "saw paused": self._saw_paused,
            "saw timeout": self._saw_timeout,
            "saw types": self._saw_types,
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
        self._own_made = set()
        self.own_pauses = {}
        self.own_retentions = {}
        self.resumed = {}
        self.taken_away = {}
        self.model.room = transaction.limits.value - _OFFSET
        self.model.left = {}
        self._cut = False
        self._met_damage = any(map(is_damage, transaction.written))
        self.tallies.begin()
        handlers, log = self._handlers, self.model.log
        is_commit = transaction.commit_version is not None
        for entry in transaction.journal:
            if entry.id is not None and is_damage(entry.id.encode() if isinstance(entry.id, str) else entry.id):
                continue
            self.count += 1
            position = len(log)
            handlers[entry.name](entry)
            if is_commit and len(log) > position:
                self.tallies.note(entry, log[position:])
        if is_commit:
            self._made |= self._own_made

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
        if not is_weather(entry.result):
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
        change, rule, seconds, within = entry.arguments
        self.cells["enqueue unique" if rule == "unique" else "enqueue", column(job)] += 1
        if self._failed_for_itself(entry, entry.result, key, change):
            return
        removed = False
        if job is None:
            exists = self._type_may_exist(entry.type)
            made = rows_of(entry.type).timeout in self._transaction.written
            self._check_made(entry, seconds, made)
            missing = exists == {False} or (len(exists) > 1 and made)
            # One that somebody has removed is not made again.
            removed = missing and entry.type in self._made | self._own_made
            removed = entry.result is NoTypeTimeout if len(exists) > 1 else removed
            if missing and not removed:
                self.own_types[entry.type] = seconds
                self._own_made.add(entry.type)
        expected = NoTypeTimeout if removed else self.model.enqueue(key, change, rule, within, entry.now)
        self._check(entry, key, expected, entry.result)

    def _enqueue_many(self, entry: Entry) -> None:
        """Add jobs for a handler of which one failed: nothing of them is left, as with `_add_many`."""
        model = self.model
        position, places, left = len(model.log), model.places, model.left.copy()
        own_types, made = self.own_types.copy(), self._own_made.copy()
        for each in entry.arguments[0]:
            self._enqueue(each)
        model.undo(position)
        model.places, model.left, self.own_types, self._own_made = places, left, own_types, made

    def _check_made(self, entry: Entry, seconds: float | None, made: bool) -> None:
        """A type that somebody has made meanwhile stays as it is."""
        past = self.timeouts.get(entry.type, [])
        latest = past[-1][1] if past else None
        journal = self._transaction.journal
        others = any(each.name in ("set timeout", "clear timeout") and each.type == entry.type for each in journal)
        if made and not others and entry.type not in self.own_types and latest not in (None, seconds):
            self.complain(f"{self.who()}: enqueue to {entry.type!r} has overwritten its timeout of {latest}")

    def _update(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, data, progress, healthy = entry.arguments
        self.cells["update", column(job, lock)] += 1
        change = Change(_joined(job, data, progress), UNSET, UNSET)
        if not self._failed_for_itself(entry, entry.result, key, change):
            expected = self.model.update(key, lock, data, self._time(), progress, healthy)
            self._check(entry, key, expected, entry.result)

    def _give_up(self, entry: Entry) -> None:
        key, job = self._job(entry)
        self.cells["give up", column(job)] += 1
        self._know_retention(entry.type, entry.result)
        self._check(entry, key, self.model.give_up(key, entry.now, entry.arguments[0]), entry.result)

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
        lock, said, run_at, asked = entry.arguments
        change = Change(_joined(job, UNSET, said.error), UNSET, UNSET)
        self._end(entry, change, lambda: self.model.crash(key, lock, said, run_at, asked, entry.now))

    def _stop(self, entry: Entry) -> None:
        key, _ = self._job(entry)
        lock, run_at, most, reason, anew = entry.arguments
        self._end(entry, None, lambda: self.model.stop(key, lock, entry.now, run_at, most, reason, anew))

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

    # Types

    def _set_timeout(self, entry: Entry) -> None:
        if entry.result is None:
            (seconds,) = entry.arguments
            self.own_types[entry.type] = seconds
            self._own_made.add(entry.type)
        elif entry.result is not JobTooLarge and not is_weather(entry.result):
            self.complain(f"{self.who()}: set timeout of {entry.type!r} gave {shown(entry.result)}")

    def _clear_timeout(self, entry: Entry) -> None:
        if entry.result is None:
            self.own_types[entry.type] = None
        elif entry.result is not JobTooLarge and not is_weather(entry.result):
            self.complain(f"{self.who()}: clear timeout of {entry.type!r} gave {shown(entry.result)}")

    def _pause(self, entry: Entry) -> None:
        if entry.result is None:
            self.own_pauses[entry.type] = entry.name == "pause"
            if entry.name == "resume":
                self.resumed[entry.type] = None
        elif entry.result is not JobTooLarge and not is_weather(entry.result):
            self.complain(f"{self.who()}: {entry.name} of {entry.type!r} gave {shown(entry.result)}")

    def _set_retention(self, entry: Entry) -> None:
        if entry.result is None:
            (self.own_retentions[entry.type],) = entry.arguments
        elif entry.result is not JobTooLarge and not is_weather(entry.result):
            self.complain(f"{self.who()}: set retention of {entry.type!r} gave {shown(entry.result)}")


def _joined(job: ModelJob | None, data: Any, *parts: Any) -> bytes:
    """Return the new data of a job, or what it has, with the parts that are written beside it."""
    if data is UNSET:
        data = b"" if job is None or job.data is UNSET else job.data
    return b"".join((data, *(part for part in parts if isinstance(part, bytes))))
