"""What every operation does to jobs: a plain, sequential model without keys, transactions or I/O.

It is written from the operations table, not from the layer, so that a defect of one is not in the other. Priorities are
compared as the tuple layer packs them, and data are opaque.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from jobs_service.errors import JobCanceled, JobExists, JobNotFound, JobsError, NoTypeTimeout, WorkerConflict
from jobs_service.model import UNSET, JobId, JobType, Outcome, Removal
from tests.simulation.model_job import (
    FINISHED,
    NOTHING,
    READY,
    RUNNING,
    SCHEDULED,
    Change,
    Key,
    ModelJob,
    Notes,
    Said,
    crashed,
    fitted,
    happened,
    next_run,
    noted,
    size,
    told,
)

_ROOMY: Final = 100_000
_BELIEVED: Final = 300.0
"""Seconds by which the end of a job may lie ahead."""

Result: TypeAlias = ModelJob | type[JobsError]
"""What an operation gives: the job as it is afterwards, or an error that has changed nothing."""

Rank: TypeAlias = tuple[bytes, int, Any]
"""A job's place among the candidates of an accept: priority, 0 ready or 1 scheduled, then place or (run_at, id)."""


class _Queue:
    """The pending jobs of one type, in order."""

    __slots__ = ("ready", "scheduled")

    def __init__(self) -> None:
        self.ready: list[tuple[bytes, int, Key]] = []
        self.scheduled: list[tuple[float, tuple[bool, bytes], Key]] = []


class Model:
    """All jobs and types.

    Attributes:
        jobs: by type and id.
        timeouts: of the types that exist, seconds.
        retentions: of types, how long finished jobs are kept, seconds: (those that failed not, those that failed).
        places: the number of the last move.
        room: bytes that a record may take; history and error for which there is none are forgotten.
        log: of every change: the job, and what it was before.
        left: jobs that have left with their end since this was emptied last, as they were then; None for those that
            were added again and removed since.
    """

    def __init__(self) -> None:
        self.jobs: dict[Key, ModelJob] = {}
        self.timeouts: dict[JobType, float] = {}
        self.retentions: dict[JobType, tuple[float | None, float | None]] = {}
        self.places = 0
        self.room = _ROOMY
        self.log: list[tuple[Key, ModelJob | None]] = []
        self.left: dict[Key, ModelJob | None] = {}
        self._queues: dict[JobType, _Queue] = {}

    # Creators

    def add(self, key: Key, change: Change, if_exists: str, now: float, *, type_exists: bool | None = None) -> Result:
        """Add a job; `type_exists` overrides what the model knows of the type."""
        job = self.jobs.get(key)
        if job is None:
            if not (key[0] in self.timeouts if type_exists is None else type_exists):
                return NoTypeTimeout
            return self._create(key, change, now)
        if if_exists == "error":
            return JobExists
        return job if if_exists == "ignore" else self.resubmit(key, change, now)

    def enqueue(self, key: Key, change: Change, rule: str, within: float, now: float) -> Result:
        """Add a job for a handler: the only one of its kind, also so long after its end, or as the rule says."""
        job = self.jobs.get(key)
        if job is None:
            return self._create(key, change, now)
        if rule == "error":
            return JobExists
        if rule == "ignore" or (rule == "unique" and job.state is not FINISHED):
            return job
        if rule == "unique" and job.notes.history and -_BELIEVED <= now - job.notes.history[0][1] < within:
            return job
        return self.resubmit(key, change, now, wholly=True)

    def resubmit(self, key: Key, change: Change, now: float, *, wholly: bool = False) -> Result:
        """Have a job run again, as a creator; `wholly`: if it has finished, no limits of an earlier call stay."""
        job = self.jobs.get(key)
        if job is None:
            return JobNotFound
        if job.state is RUNNING:
            following = next_run(job, change)
            return job if job.next == following else self.put(key, job._replace(next=following))
        data = job.data if change.data is UNSET else change.data
        priority = job.priority if change.priority is UNSET else change.priority
        run_at = job.run_at if change.run_at is UNSET else change.run_at
        if job.state is not FINISHED and (priority, run_at) == (job.priority, job.run_at):
            return job if data == job.data else self.put(key, job._replace(data=data))
        if job.state is FINISHED:
            limits = change.limits or (None if wholly else job.notes.limits)
            notes = Notes(0, noted(job.notes, "added", now), limits=limits)
        else:
            notes = happened(job.notes, "added", now)._replace(limits=change.limits or job.notes.limits)
        return self._wait(key, notes, data, priority, run_at, job.next, now)

    def remove(self, key: Key, force: bool) -> Removal | type[JobsError]:
        """Remove a job, or ask its worker to finish it."""
        job = self.jobs.get(key)
        if job is None:
            return JobNotFound
        if job.state is RUNNING and not force:
            if not job.cancel:
                self.put(key, job._replace(cancel=True))
            return Removal.CANCELED
        self.restore(key, None)
        return Removal.REMOVED

    # The queue

    def due(self, type: JobType, max_priority: bytes | None, due_by: float, now: float) -> Iterator[tuple[Rank, Key]]:
        """Yield the jobs that an accept may take, in order.

        Scheduled jobs are among them only if `due_by` lies in the future; otherwise they must be made ready first.
        """
        queue = self._queues.get(type)
        if queue is None:
            return iter(())
        ready = self._ready(queue, max_priority, due_by)
        if due_by <= now or not queue.scheduled:
            return ready
        later = sorted(self._later(queue, max_priority, due_by))
        return heapq.merge(ready, later) if later else ready

    def first(
        self, type: JobType, limit: int, max_priority: bytes | None, due_by: float, now: float
    ) -> list[tuple[Rank, Key]]:
        """Return the jobs that an accept in exact order takes."""
        return list(islice(self.due(type, max_priority, due_by, now), limit))

    def accept(
        self, key: Key, lock: bytes, time: float, now: float = 0.0, worker: str = "", most: int | None = None
    ) -> ModelJob:
        """Give a pending job to a worker."""
        job = self.jobs[key]
        self.places += 1
        history = noted(job.notes, "started", now, worker, most)
        notes = job.notes._replace(attempts=job.notes.attempts + 1, history=history)
        return self.put(
            key,
            ModelJob(
                RUNNING, job.data, job.priority, job.run_at, None, job.next, False, lock, notes, self.places, time
            ),
        )

    def scheduled(self, type: JobType) -> Iterator[Key]:
        """Yield the type's scheduled jobs, the earliest first."""
        queue = self._queues.get(type)
        return iter(()) if queue is None else (key for _, _, key in queue.scheduled)

    def make_ready(self, key: Key) -> ModelJob:
        """Put a scheduled job that is due into the queue."""
        self.places += 1
        return self.put(key, self.jobs[key]._replace(state=READY, place=self.places))

    def set_right(self, key: Key, now: float) -> ModelJob:
        """Take the last run of a job to have ended now, which a clock far ahead has ended."""
        self.places += 1
        job = self.jobs[key]
        notes, ahead = job.notes, job.notes.history[0][1] - now
        history = tuple((kind, at - ahead if at > now else at, detail) for kind, at, detail in notes.history)
        notes = notes._replace(history=history, expires=None if notes.expires is None else notes.expires - ahead)
        job = job._replace(notes=notes, place=self.places)
        if job.state is SCHEDULED:
            assert job.run_at is not None
            run_at = max(now, job.run_at - ahead)
            job = job._replace(state=SCHEDULED if run_at > now else READY, run_at=run_at)
        return self.put(key, job)

    def put_back(self, key: Key) -> ModelJob:
        """Have a ready job that is not due, made ready by a clock that was ahead, wait for its time."""
        self.places += 1
        return self.put(key, self.jobs[key]._replace(state=SCHEDULED, place=self.places))

    # Workers

    def update(
        self, key: Key, lock: bytes, data: Any, time: float, progress: bytes | None = None, healthy: bool = False
    ) -> Result:
        """Show that a job is alive, with new data or UNSET, and new progress or None; perhaps that it is healthy."""
        job = self.jobs.get(key)
        if job is None or job.lock != lock:
            return WorkerConflict
        if job.cancel:
            return JobCanceled
        self.places += 1
        kept = job.data if data is UNSET else data
        notes = job.notes if progress is None else job.notes._replace(progress=progress)
        if healthy:
            notes = notes._replace(attempts=1, crashes=0)
        return self.put(key, job._replace(data=kept, notes=notes, place=self.places, active_at=time))

    def beat(self, key: Key, lock: bytes, time: float) -> Result:
        """Show that a job is alive, whether canceled or not."""
        job = self.jobs.get(key)
        if job is None or job.lock != lock:
            return WorkerConflict
        self.places += 1
        return self.put(key, job._replace(place=self.places, active_at=time))

    def finish(self, key: Key, lock: bytes, data: Any, outcome: Outcome, now: float, said: Said = NOTHING) -> Result:
        """End a run, with new data or UNSET."""
        job = self.jobs.get(key)
        if job is None or job.lock != lock:
            return WorkerConflict
        kept = job.data if data is UNSET else data
        job = job._replace(notes=told(job.notes, said))
        if said.reason:
            notes = crashed(job.notes, now, said)
            job = job._replace(notes=notes._replace(attempts=max(notes.attempts + said.attempts, 0)))
        if job.cancel:
            outcome = Outcome.CANCELED if outcome is Outcome.SUCCEEDED else outcome
            return self._end(key, job, kept, outcome, now, said.most)
        if job.next is not None:
            notes = happened(job.notes, "finished", now, "", said.most)._replace(attempts=0)
            return self._wait(key, notes, kept, *job.next, None, now)
        return self._end(key, job, kept, outcome, now, said.most)

    def crash(self, key: Key, lock: bytes, said: Said, run_at: float, asked: Any, now: float) -> Result:
        """End a run that failed: it is to be tried again from a time on, not earlier because it has asked itself."""
        job = self.jobs.get(key)
        if job is None or job.lock != lock:
            return WorkerConflict
        if asked is not None and job.next == asked and (asked[1] is None or asked[1] < run_at):
            job = job._replace(next=(asked[0], run_at))
        notes = crashed(told(job.notes, said), now, said)
        return self._give_back(key, job, notes, run_at, now)

    def worker_resubmit(self, key: Key, lock: bytes, change: Change, time: float) -> Result:
        """Have a job run again after this run, as its worker."""
        job = self.jobs.get(key)
        if job is None or job.lock != lock:
            return WorkerConflict
        if job.cancel:
            return JobCanceled
        self.places += 1
        data = job.data if change.data is UNSET else change.data
        following = next_run(job, change)
        return self.put(key, job._replace(data=data, next=following, place=self.places, active_at=time))

    def stop(
        self,
        key: Key,
        lock: bytes,
        now: float,
        run_at: float | None = None,
        most: int | None = None,
        reason: str = "released",
        anew: bool = True,
    ) -> Result:
        """Give a job back as one whose run does not count, to run from a time on; None for the time it had."""
        job = self.jobs.get(key)
        if job is None or job.lock != lock:
            return WorkerConflict
        attempts = 0 if anew else max(job.notes.attempts - 1, 0)
        notes = happened(job.notes, "stopped", now, reason, most)._replace(attempts=attempts)
        return self._give_back(key, job, notes, job.run_at if run_at is None else run_at, now)

    def give_up(self, key: Key, now: float, reason: str) -> Result:
        """End a job that waits for another attempt: it has failed for good."""
        job = self.jobs.get(key)
        if job is None or not job.pending or not job.notes.history or job.notes.history[0][0] != "crashed":
            return JobNotFound
        return self._end(key, job, job.data, Outcome.FAILED, now, None, reason)

    def lose(self, key: Key, now: float) -> ModelJob:
        """Take a running job from its worker."""
        job = self.jobs[key]
        return self._give_back(key, job, happened(job.notes, "lost", now), job.run_at, now)

    # Changes

    def _create(self, key: Key, change: Change, now: float) -> ModelJob:
        notes = Notes(0, (("added", now, ""),), limits=change.limits)
        return self._wait(key, notes, change.data, change.priority, change.run_at, None, now)

    def _give_back(self, key: Key, job: ModelJob, notes: Notes, run_at: float | None, now: float) -> ModelJob:
        if job.cancel:
            return self._end(key, job._replace(notes=notes), job.data, Outcome.CANCELED, now)
        if job.next is not None:
            wanted, own = (now if time is None or time < now else time for time in (job.next[1], run_at))
            if wanted <= own:
                return self._wait(key, notes, job.data, *job.next, None, now)
        return self._wait(key, notes, job.data, job.priority, run_at, job.next, now)

    def _wait(
        self,
        key: Key,
        notes: Notes,
        data: bytes,
        priority: bytes,
        run_at: Any,
        following: tuple[bytes, float | None] | None,
        now: float,
    ) -> ModelJob:
        """Make a job pending: at the end of its priority's queue, or scheduled for later."""
        self.places += 1
        run_at = None if run_at is UNSET else run_at
        state = READY if run_at is None or run_at <= now else SCHEDULED
        notes = notes._replace(expires=None)
        return self.put(
            key, ModelJob(state, data, priority, run_at, None, following, False, None, notes, self.places, None)
        )

    def _end(
        self,
        key: Key,
        job: ModelJob,
        data: bytes,
        outcome: Outcome,
        now: float,
        most: int | None = None,
        reason: str = "",
    ) -> ModelJob:
        self.places += 1
        notes = happened(job.notes, "canceled" if outcome is Outcome.CANCELED else "finished", now, reason, most)
        keep = self.retentions.get(key[0], (None, None))[outcome is Outcome.FAILED]
        notes = notes._replace(expires=None if keep is None else now + keep)
        ended = self.put(
            key,
            ModelJob(FINISHED, data, job.priority, job.run_at, outcome, None, False, None, notes, self.places, None),
        )
        if keep == 0:
            self.restore(key, None)
            self.left[key] = ended
        return ended

    def put(self, key: Key, job: ModelJob) -> ModelJob:
        """Make this the job's present state, with as much told of its runs as there is room for, and return it."""
        if len(job.data) + job.notes.size() > self.room // 4 and size(job) > self.room:
            job = job._replace(notes=fitted(job.notes, self.room - size(job) + job.notes.size()))
        self.restore(key, job)
        return job

    def restore(self, key: Key, job: ModelJob | None) -> None:
        """Make a job be in some state, None for gone."""
        before = self.jobs.get(key)
        self.log.append((key, before))
        if job is None and key in self.left:
            self.left[key] = None
        self._set(key, before, job)

    def undo(self, position: int) -> list[tuple[Key, ModelJob | None]]:
        """Take back all changes after a position of the log; return them, the newest first, for `restore`."""
        undone: list[tuple[Key, ModelJob | None]] = []
        while len(self.log) > position:
            key, before = self.log.pop()
            job = self.jobs.get(key)
            undone.append((key, job))
            self._set(key, job, before)
        return undone

    def _set(self, key: Key, before: ModelJob | None, job: ModelJob | None) -> None:
        if before is not None and before.pending:
            self._leave(key, before)
        if job is None:
            self.jobs.pop(key, None)
            return
        self.jobs[key] = job
        if job.pending:
            self._enter(key, job)

    def _enter(self, key: Key, job: ModelJob) -> None:
        queue = self._queues.get(key[0])
        if queue is None:
            queue = self._queues[key[0]] = _Queue()
        if job.state is READY:
            insort(queue.ready, (job.priority, job.place, key))
        else:
            assert job.run_at is not None
            insort(queue.scheduled, (job.run_at, _order(key[1]), key))

    def _leave(self, key: Key, job: ModelJob) -> None:
        queue = self._queues[key[0]]
        if job.state is READY:
            del queue.ready[bisect_left(queue.ready, (job.priority, job.place, key))]
        else:
            assert job.run_at is not None
            del queue.scheduled[bisect_left(queue.scheduled, (job.run_at, _order(key[1]), key))]

    def _ready(self, queue: _Queue, max_priority: bytes | None, due_by: float) -> Iterator[tuple[Rank, Key]]:
        for priority, place, key in queue.ready:
            if max_priority is not None and priority > max_priority:
                return
            run_at = self.jobs[key].run_at
            if run_at is None or run_at <= due_by:
                yield (priority, 0, place), key

    def _later(self, queue: _Queue, max_priority: bytes | None, due_by: float) -> Iterator[tuple[Rank, Key]]:
        for run_at, order, key in queue.scheduled:
            if run_at > due_by:
                return
            priority = self.jobs[key].priority
            if max_priority is None or priority <= max_priority:
                yield (priority, 1, (run_at, order)), key


def _order(id: JobId) -> tuple[bool, bytes]:
    """Return what ids are sorted by: bytes before str, as in the keys."""
    return (True, id.encode()) if isinstance(id, str) else (False, id)
