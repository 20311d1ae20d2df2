"""Jobs as table rows and pages, read in bounded steps and without their secret fields."""

from __future__ import annotations

import json
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from jobs_service.dashboard import texts
from jobs_service.errors import RecordDamaged
from jobs_service.http import wire
from jobs_service.model import HistoryEvent, Job
from jobs_service.replication.status import ReplicationStatus
from jobs_service.service.selection import Filter, pages
from jobs_service.status import Status, status_of

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.model import JobId, JobType

ON_A_PAGE: Final = 30
"""Most jobs on one page."""
MOST_READ: Final = 500
"""Most jobs that one page reads to find matching ones; then it links to the continuation."""
_FILTERED_AT_ONCE: Final = 30


@dataclass(frozen=True, slots=True)
class Row:
    """A job in a table.

    Attributes:
        type, id: the job.
        state: a word of Status.
        attempts: the number of runs that have begun.
        last: its newest event; None without a history.
        due: the due time of a scheduled or retrying job.
        note: its progress, error, result or data on one line.
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
    """Return a row for a job whose secret fields are redacted already."""
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
    """A replication job in a table.

    Attributes:
        type, id: the job.
        state: a word of Status.
        status: the status of the replication.
        error: the error of its last failed run on one line; "" for none.
    """

    type: JobType
    id: JobId
    state: str
    status: ReplicationStatus
    error: str


def replications(jobs: list[Job], now: float) -> list[Replication]:
    """Return the readable replications among some jobs whose secret fields are redacted already."""
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
    """The jobs on one page of a filter.

    Attributes:
        jobs: the matching jobs without their secret fields.
        next: the position of the next page; None after the last one.
        read: the number of jobs that were read to find them.
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
    """Return one page of matching jobs, with a limit on the number of reads.

    Args:
        service: the service.
        type: the type of the jobs.
        wanted: the filter.
        after: `next` of the previous page.
        newest_first: whether to read in reverse order.
        most: a page that reaches this number of jobs ends.
        most_read: a page that has read this number of jobs ends.
    """
    jobs: list[Job] = []
    read = 0
    at_once = _FILTERED_AT_ONCE if wanted.needs_reading else max(min(most, most_read), 1)
    async with aclosing(pages(service, type, wanted, read=at_once, after=after, newest_first=newest_first)) as found:
        async for page in found:
            jobs += page.jobs
            read += page.read
            # A short page: the store has skipped very many jobs in other states, and returns the next position.
            if page.read < at_once or len(jobs) >= most or read >= most_read:
                return Found(jobs, page.next, read)
    return Found(jobs, None, read)


async def one(service: JobsService, type: JobType, id: JobId) -> Job:
    """Return a job without its secret fields; raises as JobsService.get."""
    job = await service.get(type, id)
    return (await service.get_redaction(type)).job(job)


def json_line(job: Job) -> bytes:
    """Return a job as a line of JSON."""
    return encoded(json.dumps(wire.listed_job(job), ensure_ascii=False, separators=(",", ":")) + "\n")


def encoded(text: str) -> bytes:
    """Return a text as UTF-8; lone surrogates, which UTF-8 lacks, are escaped as in JSON: \\ud800."""
    return text.encode(errors="backslashreplace")
