"""Whether the operations of a run were as if done one after the other: each commit's are done again on the plain model.

A transaction that has written takes its place at its commit, one that only reads at its read version. What the layer
reads without a conflict may be as old as the read version: the type's timeout, the scheduled jobs, and with `spread`
the front of the queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple, Protocol

import fdb.tuple

from jobs_service import json_data
from jobs_service.errors import JobTooLarge, NoTypeTimeout, StoreError, TransactionTooLarge
from jobs_service.layer.keyspace import ACTIVITY_TIMEOUT, DATA, Keyspace, TypeKeys, pack_id
from jobs_service.layer.pending import Terms
from jobs_service.layer.record import LOCK_BYTES, Record
from jobs_service.layer.record import SCHEDULED as IS_SCHEDULED
from jobs_service.model import UNSET, JobId, JobState, JobType, Outcome
from jobs_service.store.base import Limits
from tests.simulation.complaints import called, differences, named, observed, shown, shown_terms
from tests.simulation.journal import UNOBSERVED, Entry
from tests.simulation.model import (
    OBSERVED,
    RUNNING,
    SCHEDULED,
    Change,
    Key,
    Model,
    ModelJob,
    column,
)

TOLERANCE: Final = 1e-6
"""Seconds by which a sum of times may be off."""

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


class State(NamedTuple):
    """What a job was from one commit on.

    Attributes:
        version: of the commit.
        time: of the commit, on the loop's clock, seconds.
        state: REMOVED when it is gone.
        data: its JSON value, None when it is gone.
        outcome: None unless finished.
        seq: the record's 12 bytes, None when it is gone.
    """

    version: int
    time: float
    state: JobState
    data: Any
    outcome: Outcome | None
    seq: bytes | None


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


class History:
    """An observer of a cluster that does every operation again on the model, and complains about what differs.

    Args:
        time: the loop's clock, seconds.
        keyspace: where the jobs' keys are.

    Attributes:
        model: all jobs and types as they must be now.
        complaints: what was wrong, a line each; the first of many only.
        cells: how often each cell of the operations table has occurred: (operation, what the job was before).
        silences: the jobs that were taken for lost.
        operations: how many operations were checked.
    """

    def __init__(self, time: Callable[[], float], keyspace: Keyspace) -> None:
        self.model = Model()
        self.complaints: list[str] = []
        self.cells: Counter[tuple[str, str]] = Counter()
        self.silences: list[Silence] = []
        self.operations = 0
        self._time = time
        self._keyspace = keyspace
        self._data_section = keyspace.sections[DATA]
        self._timeout_section = keyspace.sections[ACTIVITY_TIMEOUT]
        self._keys: dict[Key, tuple[TypeKeys, bytes]] = {}
        self._jobs: dict[bytes, Key] = {}
        self._states: dict[Key, list[tuple[int, float, Record | None]]] = {}
        self._timeouts: dict[JobType, list[tuple[int, float | None]]] = {}
        # Of every commit: its version, how long the model's log was then, and the number of the last move.
        self._versions: list[int] = [-1]
        self._positions: list[int] = [0]
        self._places: list[int] = [0]
        self._locks: dict[bytes, str] = {}
        # Of the transaction that is looked at: the last move that it can have seen, and the last before its own.
        self._transaction: Ended
        self._seen_places = 0
        self._own_places = 0
        self._cut = False
        self._own_types: dict[JobType, float | None] = {}
        self._handlers: dict[str, Callable[[Entry], None]] = {
            "add": self._add,
            "add many": self._add_many,
            "resubmit": self._resubmit,
            "remove": self._remove,
            "update": self._update,
            "finish": self._finish,
            "worker resubmit": self._worker_resubmit,
            "release": self._release,
            "make ready": self._make_ready,
            "accept": self._accept,
            "lost": self._lost,
            "set timeout": self._set_timeout,
            "clear timeout": self._clear_timeout,
            "cut": self._note_cut,
        }

    # What the cluster calls, and what checks ask

    def ended(self, transaction: Ended) -> None:
        """Look at a transaction that has ended well; called in commit order, at the moment of the commit."""
        if transaction.commit_version is not None:
            self._look_at_commit(transaction, transaction.commit_version)
        elif transaction.journal:
            self._look_at_reads(transaction)

    def states(self, type: JobType, id: JobId) -> list[State]:
        """Return a job's true history: what it was from each commit on that has written it."""
        return [_state(*each) for each in self._states.get((type, id), ())]

    def finish(self, stored: Mapping[bytes, bytes]) -> None:
        """Compare the whole model with what is stored at the end.

        Args:
            stored: keys and values; those that are no job's record or type's timeout are ignored.
        """
        records = {key: raw for key, raw in stored.items() if key.startswith(self._data_section)}
        for key, job in self.model.jobs.items():
            raw = records.pop(self._keys[key][1], None)
            differs = "nothing is stored" if raw is None else differences(job, Record.decode(raw))
            if differs:
                self._complain(f"at the end: {named(*key)} is {shown(job)}: {differs}")
        for data_key in records:
            keys, id = self._keyspace.split_data_key(data_key)
            self._complain(f"at the end: {named(keys.type, id)} is stored, but must be gone")
        timeouts = {
            fdb.tuple.unpack(key[len(self._timeout_section) :])[0]: fdb.tuple.unpack(raw)[0]
            for key, raw in stored.items()
            if key.startswith(self._timeout_section)
        }
        if timeouts != self.model.timeouts:
            self._complain(f"at the end: the types' timeouts are {timeouts}, not {self.model.timeouts}")

    # Transactions

    def _look_at_commit(self, transaction: Ended, version: int) -> None:
        model = self.model
        position = len(model.log)
        self._run(transaction)
        self._compare_timeouts(transaction.written)
        self._compare_jobs(position, version, transaction.written)
        if len(model.log) != position:
            self._versions.append(version)
            self._positions.append(len(model.log))
            self._places.append(model.places)
        for type, seconds in self._own_types.items():
            self._timeouts.setdefault(type, []).append((version, seconds))

    def _look_at_reads(self, transaction: Ended) -> None:
        """Do the operations on the past that the transaction has seen; they must change nothing."""
        model = self.model
        places = model.places
        mark = bisect_right(self._versions, transaction.version) - 1
        undone = model.undo(self._positions[mark])
        position = len(model.log)
        self._run(transaction)
        if len(model.log) != position:
            changed = {key for key, _ in model.log[position:]}
            names = ", ".join(sorted(named(*key) for key in changed))
            self._complain(f"{self._who()}: it wrote nothing, but must have changed {names}")
            model.undo(position)
        for type in self._own_types:
            self._complain(f"{self._who()}: it wrote nothing, but must have changed the timeout of {type!r}")
        for key, job in reversed(undone):
            model.restore(key, job)
        model.places = places

    def _run(self, transaction: Ended) -> None:
        self._transaction = transaction
        self._seen_places = self._places[bisect_right(self._versions, transaction.version) - 1]
        self._own_places = self.model.places
        self._cut = False
        self._own_types = {}
        handlers = self._handlers
        for entry in transaction.journal:
            self.operations += 1
            handlers[entry.name](entry)

    # Creators

    def _add(self, entry: Entry) -> None:
        change, if_exists = entry.arguments
        self._add_one(entry, entry.id, change, if_exists, entry.result)

    def _add_one(self, entry: Entry, id: Any, change: Change, if_exists: str, result: Any) -> Any:
        """Add a job, and return what that must give."""
        key = self._key(entry.keys, id)
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
        """Add jobs of which one failed: those before it were added, if the transaction went on all the same."""
        wanted, if_exists = entry.arguments
        for id, change in wanted:
            if entry.result is JobTooLarge and self._may_be_too_large(entry, self._key(entry.keys, id), change):
                return
            expected = self._add_one(entry, id, change, if_exists, UNOBSERVED)
            if isinstance(expected, type):
                self._check(entry, self._key(entry.keys, id), expected, entry.result)
                return
        if not _is_weather(entry.result):
            self._complain(f"{self._who()}: add many to {entry.type!r} gave {shown(entry.result)} for no reason")

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
        if force and job is not None and job.lock is not None:
            self._end_lock(entry, key, job.lock)
        self._check(entry, key, self.model.remove(key, force), entry.result)

    # Workers

    def _update(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, data = entry.arguments
        self.cells["update", column(job, lock)] += 1
        if not self._failed_for_itself(entry, entry.result, key, Change(data, UNSET, UNSET)):
            self._check(entry, key, self.model.update(key, lock, data, self._time()), entry.result)

    def _finish(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, data, outcome = entry.arguments
        self.cells["finish", column(job, lock)] += 1
        if self._failed_for_itself(entry, entry.result, key, Change(data, UNSET, UNSET)):
            return
        if entry.result.__class__ is Record:
            self._end_lock(entry, key, lock)
        self._check(entry, key, self.model.finish(key, lock, data, outcome, entry.now), entry.result)

    def _worker_resubmit(self, entry: Entry) -> None:
        key, job = self._job(entry)
        lock, change = entry.arguments
        self.cells["worker resubmit", column(job, lock)] += 1
        if not self._failed_for_itself(entry, entry.result, key, change):
            self._check(entry, key, self.model.worker_resubmit(key, lock, change, self._time()), entry.result)

    def _release(self, entry: Entry) -> None:
        key, job = self._job(entry)
        (lock,) = entry.arguments
        self.cells["release", column(job, lock)] += 1
        if self._failed_for_itself(entry, entry.result, key):
            return
        if entry.result.__class__ is Record:
            self._end_lock(entry, key, lock)
        self._check(entry, key, self.model.release(key, lock, entry.now), entry.result)

    # The queue

    def _make_ready(self, entry: Entry) -> None:
        until, limit = entry.arguments
        self._cut = False
        moved = self._found(entry)
        if not moved:
            return
        model = self.model
        if len(moved) > limit:
            self._complain(f"{self._who()}: make ready of {entry.type!r} moved {len(moved)} jobs, {limit} at most")
        latest = -float("inf")
        for id, record in moved:
            key = self._key(entry.keys, id)
            job = model.jobs.get(key)
            self.cells["make ready", column(job)] += 1
            if job is None or job.state is not SCHEDULED or job.run_at is None:
                self._complain(f"{self._who()}: make ready moved {named(*key)}, which is {shown(job)}")
                continue
            if job.run_at > min(until, entry.now):
                early = job.run_at - min(until, entry.now)
                self._complain(f"{self._who()}: make ready moved {named(*key)} {early:g} s before its time")
            if job.run_at < latest:
                self._complain(f"{self._who()}: make ready moved {named(*key)} after one that was due later")
            latest = max(latest, job.run_at)
            self._check(entry, key, model.make_ready(key), record)
        for key in model.scheduled(entry.type):
            left = model.jobs[key]
            if left.run_at is None or left.run_at >= latest:
                return
            if self._was_there(left):
                self._complain(f"{self._who()}: make ready left {named(*key)} out, and moved jobs that are due later")

    def _accept(self, entry: Entry) -> None:
        terms: Terms = entry.arguments[0]
        taken = self._found(entry)
        cut, self._cut = self._cut, False
        if taken is None:
            return
        due_by = entry.now if terms.due_by is None else terms.due_by
        if terms.spread == 1:
            self._check_exact(entry, terms, due_by, taken, cut)
        else:
            self._check_spread(entry, terms, due_by, taken, cut)
        for id, record in taken:
            key = self._key(entry.keys, id)
            job = self.model.jobs.get(key)
            if job is not None and job.pending:
                self._take(entry, key, job, due_by, record)

    def _check_exact(
        self, entry: Entry, terms: Terms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        limit = max(1, min(len(taken), terms.limit)) if cut else terms.limit
        expected = self.model.first(entry.type, limit, terms.max_priority, due_by, entry.now)
        got = [id for id, _ in taken]
        if got != [key[1] for _, key in expected]:
            self._complain(
                f"{self._who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {got}, "
                f"expected {[key[1] for _, key in expected]}"
            )

    def _check_spread(
        self, entry: Entry, terms: Terms, due_by: float, taken: list[tuple[JobId, Any]], cut: bool
    ) -> None:
        """Every job taken must be among the first `spread` that were left when it was chosen."""
        due = self.model.due(entry.type, terms.max_priority, due_by, entry.now)
        # What became pending after the read version was not seen; what was seen but is gone by now, is not known.
        seen = [key for _, key in due if self._was_there(self.model.jobs[key])]
        wanted = min(terms.limit, len(seen))
        if len(taken) > terms.limit or (len(taken) < wanted and not (cut and taken)):
            self._complain(
                f"{self._who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {len(taken)} jobs, "
                f"expected {wanted}"
            )
        for id, _ in taken:
            key = (entry.type, id)
            if key not in islice(seen, terms.spread):
                job = self.model.jobs.get(key)
                self._complain(
                    f"{self._who()}: accept of {entry.type!r} ({shown_terms(terms, due_by)}) took {id!r}, which is "
                    f"{shown(job)}; the first were {[key[1] for key in seen[: terms.spread]]}"
                )
            if key in seen:
                seen.remove(key)

    def _take(self, entry: Entry, key: Key, job: ModelJob, due_by: float, record: Any) -> None:
        """Give an accepted job its lock."""
        self.cells["accept", "pending"] += 1
        if job.run_at is not None and job.run_at > max(due_by, entry.now):
            self._complain(f"{self._who()}: accept took {named(*key)} before its time")
        lock = record.lock if record.__class__ is Record else None
        if lock is None or len(lock) != LOCK_BYTES or not any(lock):
            self._complain(f"{self._who()}: accept gave {named(*key)} no lock, but {lock!r}")
            lock = lock or b""
        elif lock in self._locks:
            self._complain(f"{self._who()}: accept gave {named(*key)} a lock that was given before")
        self._locks[lock] = "held"
        self._check(entry, key, self.model.accept(key, lock, self._time()), record)

    # Lost jobs

    def _lost(self, entry: Entry) -> None:
        until, limit = entry.arguments
        lost = self._found(entry)
        if not lost:
            return
        if len(lost) > limit:
            self._complain(f"{self._who()}: {len(lost)} jobs of {entry.type!r} were taken for lost, {limit} at most")
        now = self._time()
        timeout = self.model.timeouts.get(entry.type)
        for id, record in lost:
            key = self._key(entry.keys, id)
            job = self.model.jobs.get(key)
            if job is None or job.state is not RUNNING or job.lock is None or job.active_at is None:
                self._complain(f"{self._who()}: {named(*key)} was taken for lost, but is {shown(job)}")
                continue
            self.cells["lost", column(job)] += 1
            silent = now - job.active_at
            self.silences.append(Silence(now, *key, silent, timeout))
            if timeout is None or silent < timeout - TOLERANCE:
                self._complain(
                    f"{self._who()}: {named(*key)} was taken for lost after {silent:.6f} s of silence; "
                    f"its type's timeout is {timeout}"
                )
            states = self._states.get(key)
            if states and states[-1][2] is not None and (states[-1][2].seq_bytes or b"")[: len(until)] > until:
                self._complain(f"{self._who()}: {named(*key)} was taken for lost, but was active after {until.hex()}")
            self._end_lock(entry, key, job.lock)
            self._check(entry, key, self.model.lose(key, entry.now), record)

    # Types

    def _set_timeout(self, entry: Entry) -> None:
        if entry.result is None:
            (seconds,) = entry.arguments
            self._own_types[entry.type] = seconds
        elif entry.result is not JobTooLarge and not _is_weather(entry.result):
            self._complain(f"{self._who()}: set timeout of {entry.type!r} gave {shown(entry.result)}")

    def _clear_timeout(self, entry: Entry) -> None:
        if entry.result is None:
            self._own_types[entry.type] = None
        elif entry.result is not JobTooLarge and not _is_weather(entry.result):
            self._complain(f"{self._who()}: clear timeout of {entry.type!r} gave {shown(entry.result)}")

    def _note_cut(self, entry: Entry) -> None:
        self._cut = True

    def _type_may_exist(self, type: JobType) -> set[bool]:
        """Return whether the type existed at any time from the read version to now: it is read by snapshot."""
        if type in self._own_types:
            return {self._own_types[type] is not None}
        past = self._timeouts.get(type, [])
        place = bisect_right(past, self._transaction.version, key=_version_of)
        if self._transaction.commit_version is None:
            past = past[:place]
        return {seconds is not None for _, seconds in past[max(place - 1, 0) :]} | ({False} if place == 0 else set())

    # What was written

    def _compare_timeouts(self, written: Mapping[bytes, bytes | None]) -> None:
        for type, seconds in self._own_types.items():
            if seconds is None:
                self.model.timeouts.pop(type, None)
            else:
                self.model.timeouts[type] = seconds
        section = self._timeout_section
        for data_key, raw in written.items():
            if not data_key.startswith(section):
                continue
            (type,) = fdb.tuple.unpack(data_key[len(section) :])
            stored = None if raw is None else fdb.tuple.unpack(raw)[0]
            if stored != self.model.timeouts.get(type):
                wanted = self.model.timeouts.get(type)
                self._complain(f"{self._who()}: the timeout of {type!r} was written as {stored}, expected {wanted}")

    def _compare_jobs(self, position: int, version: int, written: Mapping[bytes, bytes | None]) -> None:
        """Compare what was written with what the model's log says since a position."""
        model = self.model
        touched: dict[Key, ModelJob | None] = {}
        for key, before in model.log[position:]:
            touched.setdefault(key, before)
        moved: list[tuple[int, bytes, Key]] = []
        for key, before in touched.items():
            job = model.jobs.get(key)
            data_key = self._keys[key][1]
            if data_key not in written:
                if job != before:
                    self._complain(f"{self._who()}: {named(*key)} must be {shown(job)}, but was not written")
                    model.restore(key, before)
                continue
            record = self._record(key, written[data_key])
            self._compare(key, job, before, record, version)
            if job is not None and record is not None and job.place > self._own_places:
                moved.append((job.place, record.seq_bytes or b"", key))
            self._states.setdefault(key, []).append((version, self._time(), record))
        self._compare_order(moved)
        self._compare_signals(touched, version, written)
        section = self._data_section
        for data_key in written:
            if data_key.startswith(section) and self._jobs.get(data_key) not in touched:
                self._was_not_to_be_written(data_key, version, written[data_key])

    def _record(self, key: Key, raw: bytes | None) -> Record | None:
        try:
            return None if raw is None else Record.decode(raw)
        except StoreError as error:
            self._complain(f"{self._who()}: the record of {named(*key)}: {error}")
            return None

    def _compare(
        self, key: Key, job: ModelJob | None, before: ModelJob | None, record: Record | None, version: int
    ) -> None:
        """Compare a job's stored record with what it must be."""
        if record is None or job is None:
            if record is not None or job is not None:
                self._complain(f"{self._who()}: {named(*key)} must be {shown(job)}, but is {shown(record)}")
                self._adopt(key, record)
            return
        if job[:OBSERVED] != observed(record)[:OBSERVED]:
            self._complain(f"{self._who()}: {named(*key)} must be {shown(job)}: {differences(job, record)}")
            self._adopt(key, record)
            return
        seq = record.seq_bytes or b""
        if job.place > self._own_places:
            if int.from_bytes(seq[:8], "big") != version:
                self._complain(f"{self._who()}: {named(*key)} has moved, but its seq is {seq.hex()}")
            return
        past = self._states.get(key)
        last = None if not past else past[-1][2]
        if last is not None and last.seq_bytes != seq:
            self._complain(f"{self._who()}: {named(*key)} has not moved, but its seq has become {seq.hex()}")

    def _compare_order(self, moved: list[tuple[int, bytes, Key]]) -> None:
        """The seqs of jobs moved by one transaction must have the order in which they were moved."""
        if len(moved) < 2:
            return
        moved.sort(key=_place_of)
        for (_, seq, key), (_, following, after) in pairwise(moved):
            if seq >= following:
                self._complain(f"{self._who()}: {named(*key)} has moved before {named(*after)}, but its seq is later")

    def _compare_signals(
        self, touched: Mapping[Key, ModelJob | None], version: int, written: Mapping[bytes, bytes | None]
    ) -> None:
        """Whoever waits for a change of the type, or of its queue, must be told."""
        active: dict[TypeKeys, None] = {}
        woken: dict[TypeKeys, None] = {}
        for key, before in touched.items():
            job = self.model.jobs.get(key)
            if job == before:
                continue
            keys = self._keys[key][0]
            if job is None or before is None or (job.place, job.data) != (before.place, before.data):
                active[keys] = None
            if job is not None and job.pending and job.place > self._own_places:
                woken[keys] = None
        for keys in active:
            stamp = written.get(keys.watch_activity)
            if stamp is None or int.from_bytes(stamp[:8], "big") != version:
                self._complain(f"{self._who()}: jobs of {keys.type!r} have changed, but nobody was told")
        for keys in woken:
            if written.get(keys.watch_pending) is None:
                self._complain(f"{self._who()}: jobs of {keys.type!r} became pending, but nobody was told")

    def _was_not_to_be_written(self, data_key: bytes, version: int, raw: bytes | None) -> None:
        keys, id = self._keyspace.split_data_key(data_key)
        key = self._key(keys, id)
        record = self._record(key, raw)
        job = self.model.jobs.get(key)
        if record is None and job is None:
            return
        self._complain(
            f"{self._who()}: {named(*key)} was written as {shown(record)}, but no operation has changed it from "
            f"{shown(job)}"
        )
        self._adopt(key, record)
        self._states.setdefault(key, []).append((version, self._time(), record))

    def _adopt(self, key: Key, record: Record | None) -> None:
        """Go on from what is stored: one defect is one complaint."""
        model = self.model
        if record is None or (record.place == IS_SCHEDULED and record.run_at is None):
            model.restore(key, None)
            return
        model.places += 1
        active_at = self._time() if record.lock is not None else None
        model.put(key, observed(record)._replace(place=model.places, active_at=active_at))

    # Parts

    def _key(self, keys: TypeKeys, id: JobId) -> Key:
        key = (keys.type, id)
        if key not in self._keys:
            data_key = keys.data + pack_id(id)
            self._keys[key] = (keys, data_key)
            self._jobs[data_key] = key
        return key

    def _job(self, entry: Entry) -> tuple[Key, ModelJob | None]:
        assert entry.id is not None
        key = self._key(entry.keys, entry.id)
        return key, self.model.jobs.get(key)

    def _was_there(self, job: ModelJob) -> bool:
        """Whether the transaction can have seen a job where it is now."""
        return job.place <= self._seen_places or job.place > self._own_places

    def _found(self, entry: Entry) -> list[tuple[JobId, Any]] | None:
        """Return the jobs that an operation on a queue has found, None when it has failed."""
        if isinstance(entry.result, list):
            return entry.result
        if not _is_weather(entry.result):
            self._complain(f"{self._who()}: {entry.name} of {entry.type!r} gave {shown(entry.result)}")
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
        self._complain(f"{self._who()}: {called(entry)} of {named(*key)}: expected {shown(expected)}{differs}")

    def _end_lock(self, entry: Entry, key: Key, lock: bytes) -> None:
        held = self._locks.get(lock)
        if held != "held":
            said = "was never given" if held is None else f"was ended before, by {held}"
            self._complain(f"{self._who()}: {called(entry)} of {named(*key)} ended a lock that {said}")
        self._locks[lock] = f"{entry.name} in {self._who()}"

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
        data = priority = 0
        for part in (job, change):
            if part is not None:
                data = max(data, 0 if part.data is UNSET else len(part.data))
                priority = max(priority, 0 if part.priority is UNSET else len(part.priority))
        if job is not None and job.next is not None:
            priority = max(priority, len(job.next[0]))
        size = len(self._keys[key][1]) + priority + _ROOM
        return size > limits.key or data + 2 * priority + _ROOM > limits.value

    def _who(self) -> str:
        transaction = self._transaction
        if transaction.commit_version is None:
            place = f"read version {transaction.version}"
        else:
            place = f"commit {transaction.commit_version}"
        return f"{place} by {transaction.process or 'nobody'}"

    def _complain(self, complaint: str) -> None:
        if len(self.complaints) < _MOST_COMPLAINTS:
            self.complaints.append(complaint)


def _is_weather(result: Any) -> bool:
    """Whether a result is an error of the store that says nothing of jobs."""
    if not isinstance(result, type) or not issubclass(result, StoreError):
        return False
    return result.retryable or issubclass(result, TransactionTooLarge)


def _state(version: int, time: float, record: Record | None) -> State:
    if record is None:
        return State(version, time, JobState.REMOVED, None, None, None)
    return State(version, time, record.state, json_data.decode(record.json), record.outcome, record.seq_bytes)


def _version_of(entry: tuple[int, Any]) -> int:
    return entry[0]


def _place_of(moved: tuple[int, bytes, Key]) -> int:
    return moved[0]
