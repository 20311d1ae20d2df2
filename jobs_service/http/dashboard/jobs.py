"""Jobs as rows and pages of them: bounded reads, without what is secret."""

from __future__ import annotations

import json
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import RecordDamaged
from jobs_service.http.dashboard import texts
from jobs_service.model import HistoryEvent, Job
from jobs_service.replication.status import ReplicationStatus
from jobs_service.service.selection import Filter, pages
from jobs_service.status import Status, status_of

if TYPE_CHECKING:
    from jobs_service import JobId, JobsService, JobType

ON_A_PAGE: Final = 30
"""Jobs that one page shows at most."""
MOST_READ: Final = 500
"""Jobs that one page reads at most to find those: where more would have to be read, it shows where to go on."""
_FILTERED_AT_ONCE: Final = 30


@dataclass(frozen=True, slots=True)
class Row:
    """A job in a table.

    Attributes:
        type, id: the job.
        state: a word of Status.
        attempts: how many runs have begun.
        last: its newest event; None where none is known.
        due: when it is to run, of a scheduled or retrying one.
        note: progress, error or data, on one line.
        note_is_error: whether the note is an error.
    """

    type: JobType
    id: JobId
    state: str
    attempts: int
    last: HistoryEvent | None
    due: datetime | None
    note: str
    note_is_error: bool


def row(job: Job, now: float) -> Row:
    """Return a job, without what is secret, as a row."""
    try:
        state = status_of(job, now)
        last = next(iter(job.history), None)
        note, is_error = _note(job, state)
        due = job.run_at if state in (Status.SCHEDULED, Status.RETRYING) else None
        return Row(job.type, job.id, state.value, job.attempts, last, due, note, is_error)
    except RecordDamaged as error:
        return Row(job.type, job.id, Status.UNREADABLE.value, 0, None, None, texts.brief(str(error), 200), True)


def _note(job: Job, state: Status) -> tuple[str, bool]:
    error, progress = job.error, job.progress
    if error is not None and state is not Status.SUCCEEDED:
        return texts.error_line(error), True
    if progress is not None and state is Status.RUNNING:
        return texts.progress_line(progress), False
    if state is Status.SUCCEEDED and job.result is not None:
        return texts.on_one_line(job.result), False
    return texts.on_one_line(job.data), False


@dataclass(frozen=True, slots=True)
class Replication:
    """A job that replicates, in a table.

    Attributes:
        type, id: the job.
        state: a word of Status.
        status: how far it is.
        error: how its last failed run did, on one line; "" when none has.
    """

    type: JobType
    id: JobId
    state: str
    status: ReplicationStatus
    error: str


def replications(jobs: list[Job], now: float) -> list[Replication]:
    """Return those of some jobs, without what is secret, that replicate and can be read."""
    found: list[Replication] = []
    for job in jobs:
        with suppress(RecordDamaged):
            status = ReplicationStatus.of(job)
            if status is not None:
                error = "" if job.error is None else texts.error_line(job.error)
                found.append(Replication(job.type, job.id, status_of(job, now).value, status, error))
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """What a page of a filter has found.

    Attributes:
        jobs: those that match, without what is secret.
        next: where to go on; None if these were all.
        read: how many jobs were read to find them.
    """

    jobs: list[Job]
    next: str | None
    read: int


async def find(
    service: JobsService,
    type: JobType,
    wanted: Filter,
    *,
    after: str | None = None,
    newest_first: bool = False,
    most: int = ON_A_PAGE,
    most_read: int = MOST_READ,
) -> Found:
    """Return jobs that match, reading no more than so many.

    Args:
        service: of the jobs.
        type: of the jobs.
        wanted: which of them.
        after: where a page before has ended.
        newest_first: from the other end.
        most: jobs that are returned.
        most_read: jobs that are read.
    """
    jobs: list[Job] = []
    read = 0
    at_once = _FILTERED_AT_ONCE if wanted.needs_reading else max(min(most, most_read), 1)
    async with aclosing(pages(service, type, wanted, read=at_once, after=after, newest_first=newest_first)) as found:
        async for page in found:
            jobs += page.jobs
            read += page.read
            # A short page: the store has left out very many jobs in other states, and says where to go on.
            if page.read < at_once or len(jobs) >= most or read >= most_read:
                return Found(jobs, page.next, read)
    return Found(jobs, None, read)


async def one(service: JobsService, type: JobType, id: JobId) -> Job:
    """Return a job without what is secret; raises as JobsService.get."""
    job = await service.get(type, id)
    return (await service.get_redaction(type)).job(job)


def plain(job: Job) -> dict[str, Any]:
    """Return a job as plain data for JSON; if it cannot be read, what is known of it."""
    try:
        return job.to_dict()
    except RecordDamaged as error:
        from jobs_service import json_forms

        return {
            "type": json_forms.name(job.type),
            "id": json_forms.name(job.id),
            "state": "unreadable",
            "error": str(error),
        }


def json_line(job: Job) -> bytes:
    """Return a job as a line of JSON."""
    return encoded(json.dumps(plain(job), ensure_ascii=False, separators=(",", ":")) + "\n")


def encoded(text: str) -> bytes:
    """Return a text of a job as UTF-8, which has no half characters: they are written as JSON does, \\ud800."""
    return text.encode(errors="backslashreplace")
