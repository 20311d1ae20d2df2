"""Compares what a transaction was told of jobs and types with the plain model: as it is at its commit.

A transaction takes its place at its commit, so nothing that it was told may have become untrue until then: jobs, absent
ones, lists, counts, and what holds for types. One that has only read was told what was so at its read version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import fdb.tuple

from jobs_service.errors import JobNotFound, NoTypeTimeout
from jobs_service.model import JobState, JobType, Outcome
from jobs_service.model.job import Status
from tests.simulation.complaints import named, observed, shown
from tests.simulation.entry import Entry
from tests.simulation.model_job import OBSERVED, RUNNING, Key, ModelJob
from tests.simulation.queue_operations import QueueOperations
from tests.simulation.replay import TOLERANCE
from tests.simulation.rows import is_damage

_OUTCOMES = {
    Status.SUCCEEDED: Outcome.SUCCEEDED,
    Status.FAILED: Outcome.FAILED,
    Status.CANCELED: Outcome.CANCELED,
}


class ReadOperations(QueueOperations):
    """Does again what transactions have read.

    Attributes:
        is_damaged: whether there are records that cannot be read, and rows that lead to none; to be set.
    """

    is_damaged = False

    def _saw_job(self, entry: Entry) -> None:
        key, job = self._job(entry)
        self._check(entry, key, JobNotFound if job is None else job, entry.result)

    def _saw_list(self, entry: Entry) -> None:
        of_all, state = entry.arguments
        found = {self.key(type, id): record for type, id, record in entry.result if not _is_damaged(id)}
        jobs = self.model.jobs
        wanted = [key for key, job in jobs.items() if of_all or key[0] == entry.type]
        wanted = sorted((key for key in wanted if _is_in(jobs[key], state, entry.now)), key=self.keys.__getitem__)
        if [*found] != wanted or len(entry.result) > len(found) + sum(_is_damaged(id) for _, id, _ in entry.result):
            self.complain(
                f"{self.who()}: a list of {'all types' if of_all else repr(entry.type)} in state {state} has "
                f"{[id for _, id, _ in entry.result]}, expected {[key[1] for key in wanted]}"
            )
            return
        for key, record in found.items():
            if observed(record)[:OBSERVED] != jobs[key][:OBSERVED]:
                self.complain(f"{self.who()}: a list has {named(*key)} as {shown(record)}, which is {shown(jobs[key])}")

    def _saw_running(self, entry: Entry) -> None:
        found = [id for id in entry.result if not _is_damaged(id)]
        running = [(job.place, key[1]) for key, job in self._jobs_of(entry.type) if job.state is RUNNING]
        wanted = [id for _, id in sorted(running, key=lambda each: each[0])]
        if found != wanted:
            self.complain(f"{self.who()}: was told that {found} of {entry.type!r} run, expected {wanted}")

    def _saw_count(self, entry: Entry) -> None:
        due_by, limit = entry.arguments
        times = [job.run_at for _, job in self._jobs_of(entry.type) if job.pending]
        least, most = (
            sum(due_by is None or run_at is None or run_at <= due_by + off for run_at in times)
            for off in (-TOLERANCE, TOLERANCE)
        )
        if limit is not None:
            least, most = min(least, limit), min(most, limit)
        if not least <= entry.result <= most and not self.is_damaged:
            self.complain(
                f"{self.who()}: has counted {entry.result} of {entry.type!r} (due_by={due_by}, limit={limit}), "
                f"expected {least}"
            )

    def _saw_paused(self, entry: Entry) -> None:
        if entry.result != self._is_paused(entry.type):
            self.complain(f"{self.who()}: was told that {entry.type!r} is paused: {entry.result}")

    def _saw_timeout(self, entry: Entry) -> None:
        seconds = self._timeout(entry.type)
        if entry.result != (NoTypeTimeout if seconds is None else seconds) and not self.is_damaged:
            self.complain(
                f"{self.who()}: was told {shown(entry.result)} as the timeout of {entry.type!r}, which is {seconds}"
            )

    def _saw_types(self, entry: Entry) -> None:
        types = [type for type in {**self.timeouts, **self.own_types} if self._timeout(type) is not None]
        wanted = sorted(types, key=lambda type: fdb.tuple.pack((type,)))
        if entry.result != wanted and not self.is_damaged:
            self.complain(f"{self.who()}: was told that the types are {entry.result}, expected {wanted}")

    # Parts

    def _jobs_of(self, type: JobType) -> Iterator[tuple[Key, ModelJob]]:
        return ((key, job) for key, job in self.model.jobs.items() if key[0] == type)

    def _timeout(self, type: JobType) -> float | None:
        """Return a type's timeout as of the commit, or as of the read version where nothing was written."""
        if type in self.own_types:
            return self.own_types[type]
        past = self.timeouts.get(type, [])
        if self._transaction.commit_version is None:
            past = past[: bisect_right(past, self._transaction.version, key=lambda each: each[0])]
        return past[-1][1] if past else None


def _is_damaged(id: Any) -> bool:
    return is_damage(id.encode() if isinstance(id, str) else id)


def _is_in(job: ModelJob, state: Any, now: float) -> bool:
    """Whether a job is in a state, or does what a word says."""
    if state is None:
        return True
    word = str(getattr(state, "value", state))
    if word == JobState.PENDING:
        return job.pending
    if word in (Status.READY, Status.SCHEDULED):
        is_due = job.run_at is None or job.run_at <= now
        return job.pending and not job.retrying and is_due is (word == Status.READY)
    if word == Status.RETRYING:
        return job.retrying
    if word in _OUTCOMES:
        return job.outcome is _OUTCOMES[Status(word)]
    return job.state == word
