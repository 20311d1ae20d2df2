"""What somebody who asks for jobs is owed: those that are there, soon, on the terms named, and an answer in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import fdb.tuple

from jobs_service import JobState, JobType, RunningJob
from jobs_service.testing import EPOCH, Process
from tests.simulation.model_job import ModelJob

if TYPE_CHECKING:
    from tests.simulation.run import Run

_MOMENT: Final = 1.0
_RETRIES: Final = 2.0
"""Seconds that a transaction may take that has to run again and again."""
_ON_TIME: Final = 0.01
"""Seconds after its time by which a wait has ended, also while the store is away."""
_PASSED_OVER: Final = 10
"""Times `pending_batch` jobs that have come due, of which an accept that does not wait takes none."""


class Accepting:
    """One call that asks for jobs.

    Args:
        run: that it is part of.
        process: of the worker.
        type, limit, terms: what the worker asks for.
    """

    def __init__(self, run: Run, process: Process, type: JobType, limit: int, terms: Mapping[str, Any]) -> None:
        self._run = run
        self._process = process
        self._type = type
        self._limit = limit
        self._timeout: float | None = terms.get("timeout")
        most = terms.get("max_priority")
        self._most: bytes | None = None if most is None else fdb.tuple.pack((most,))
        self._due_by: float | None = terms.get("due_by")
        self._began = run.world.loop.time()
        self._pauses = process.pauses
        self._version: int = run.world.cluster.versions.version

    def __str__(self) -> str:
        return f"a worker of {self._process} who asked for {self._limit} of {self._type!r} at {self._began:.3f}"

    def answered(self, found: Sequence[RunningJob]) -> Iterator[str]:
        """Yield what is wrong with an answer."""
        waited, timeout = self._run.world.loop.time() - self._began, self._timeout
        if len(found) > self._limit:
            yield f"too many: {self} got {len(found)}"
        if not found and (timeout is None or waited < timeout - 1e-6):
            yield f"too early: {self} was told after {waited:.3f} s that there are none, and would wait {timeout} s"
        is_slow = self._process.pauses != self._pauses or not self._process.running
        if timeout and waited > timeout + _ON_TIME and not is_slow:
            yield f"too late: {self} was answered after {waited:.3f} s, and would wait {timeout} s"
        if found:
            yield from self._served_late(found)
        else:
            yield from self._overlooked(min(_MOMENT, waited))

    def gone(self) -> Iterator[str]:
        """Yield the jobs that this worker, who goes away before there was an answer, should have got long ago."""
        moment = _MOMENT + 12 * self._run.world.cluster.latency
        if self._run.world.loop.time() - self._began > moment:
            yield from self._overlooked(moment)

    def _overlooked(self, moment: float) -> Iterator[str]:
        """Yield the jobs that were there for longer than a moment, and this worker has got none."""
        run, now = self._run, self._run.world.loop.time()
        waited = now - self._began
        if not self._was_quick(self._began) or (waited < _RETRIES and run.quiet.retried_at > now - waited):
            return
        theirs = {key: job for key, job in run.history.model.jobs.items() if key[0] == self._type and job.pending}
        if self._timeout == 0 and len(theirs) >= _PASSED_OVER:
            theirs = {key: job for key, job in theirs.items() if self._most is None and self._due_by is None}
        for (type, id), job in theirs.items():
            since = max((state.time for state in run.history.states(type, id)[-1:]), default=now)
            if self._wanted(job) and max(since, self._due_at(job.run_at)) < now - moment:
                yield f"overlooked: {self} got no job, but {type!r}/{id!r} is {job.state} since {since:.3f}"

    def _served_late(self, found: Sequence[RunningJob]) -> Iterator[str]:
        """Yield the jobs that have waited beside this worker for too long."""
        run = self._run
        for job in found:
            states = run.history.states(job.type, job.id)
            taken = next((place for place, each in enumerate(states) if each.lock == job.lock), 0)
            if not taken or states[taken - 1].state is not JobState.PENDING:
                continue
            before = states[taken - 1]
            since = max(before.time, self._began, self._due_at(before.run_at))
            waited = states[taken].time - since
            if waited > _MOMENT + 12 * run.world.cluster.latency and self._was_quick(since):
                yield f"served late: {job.id!r} was there for {waited:.3f} s, and beside it {self}"

    def _was_quick(self, since: float) -> bool:
        """Whether nothing has taken time since then, and nobody has stopped the queue since this call began."""
        run = self._run
        last = run.history.pauses.get(self._type, ())[-1:]
        is_open = all(not paused and version <= self._version for version, paused in last)
        return run.quiet.quick_since() <= since and run.quiet.retried_at <= since and is_open and not run.is_damaged

    def _wanted(self, job: ModelJob) -> bool:
        return self._most is None or job.priority <= self._most

    def _due_at(self, run_at: Any) -> float:
        """Return when a job was due for this worker, on the loop's clock, seconds."""
        seconds = run_at.timestamp() if hasattr(run_at, "timestamp") else run_at
        if seconds is None:
            return 0.0
        if self._due_by is not None:
            return 0.0 if seconds <= self._due_by else float("inf")
        due: float = seconds - EPOCH - self._process.clock.ahead
        return due
