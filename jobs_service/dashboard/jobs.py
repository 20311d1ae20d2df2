"""Jobs as table rows, pages and files, read in bounded steps and without their secret fields."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response, StreamingResponse

from jobs_service.dashboard import rendering
from jobs_service.dashboard.rendering import SECURITY, problem_page
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import RecordDamaged
from jobs_service.http import wire
from jobs_service.http.audit import chosen
from jobs_service.model import HistoryEvent, HistoryKind, Job, JobId, JobType
from jobs_service.model.job import Status, status_of
from jobs_service.names import shown
from jobs_service.replication.stored import ReplicationStatus
from jobs_service.service.selection import Filter, matching, pages

if TYPE_CHECKING:
    from jobs_service import JobsService

ON_A_PAGE: Final = 50
"""Most jobs on one page."""
MOST_READ: Final = 500
"""Most jobs that one page reads to find matching ones; then it links to the continuation."""
_FILTERED_AT_ONCE: Final = 50
_MOST_FIELDS: Final = 6
"""Fields of a job's data in a table."""

COLUMNS: Final = (
    "type",
    "id",
    "state",
    "outcome",
    "priority",
    "run_at",
    "attempts",
    "data",
    "result",
    "error",
    "history",
)
_STARTS_A_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_MEDIA: Final = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


# Tables


@dataclass(frozen=True, slots=True)
class Row:
    """A job in a table.

    Attributes:
        type, id: the job.
        state: a word of Status.
        attempts: the number of runs that have begun, and of how many, in words.
        is_first: whether it has begun at most once.
        last: its newest event; None without a history.
        due: the due time of a scheduled or retrying job.
        waited, ran: seconds of its last run: until it began, and until it ended, or until now; None if unknown.
        arguments: the first fields of its data with their values; a name is "" where the data is no object.
        note: its error, progress or result on one line.
        note_is_error: whether the note is an error.
        share: the completed share of a running job's work; None if unknown.
        seq: its version, hexadecimal; "" if unknown.
    """

    type: JobType
    id: JobId
    state: str
    attempts: str
    is_first: bool
    last: HistoryEvent | None
    due: datetime | None
    waited: float | None
    ran: float | None
    arguments: tuple[tuple[str, str], ...]
    note: str
    note_is_error: bool
    share: float | None = None
    seq: str = ""


def row(job: Job, now: float, most: int | None = None) -> Row:
    """Return a row for a job whose secret fields are redacted already; `most` is the handler's number of attempts."""
    try:
        state = status_of(job, now)
        note, is_error = _note(job, state)
        due = job.run_at if state in (Status.SCHEDULED, Status.RETRYING) else None
        runs = runs_of(job)
        is_running = state is Status.RUNNING and job.progress is not None
        return Row(
            job.type,
            job.id,
            state.value,
            attempts_text(job, most),
            job.attempts < 2,
            next(iter(job.history), None),
            due,
            runs[-1].waited if runs else None,
            runs[-1].ran(now) if runs else None,
            _arguments(job.data),
            note,
            is_error,
            rendering.share(job.progress) if is_running and job.progress else None,
            job.seq.hex() if job.seq else "",
        )
    except RecordDamaged as error:
        why = rendering.brief(str(error), 200)
        return Row(job.type, job.id, Status.UNREADABLE.value, "", True, None, None, None, None, (), why, True)


def attempts_text(job: Job, most: int | None) -> str:
    """Return the number of a job's attempts, 3 of 8; `most` holds if the job has no number of its own."""
    most = most if job.max_attempts is None else job.max_attempts
    return f"{rendering.count(job.attempts)}{'' if most is None else f' of {rendering.count(most)}'}"


def most_attempts(service: JobsService, type: JobType) -> int | None:
    """Return how often a type's jobs are tried, if this process has the handler."""
    handler = service.handlers.get(type)
    return None if handler is None else handler.options.max_attempts


def _arguments(data: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(data, dict):
        return () if data is None else (("", rendering.on_one_line(data)),)
    fields = [*data.items()][:_MOST_FIELDS]
    return tuple((rendering.brief(name, 40), _plain(value)) for name, value in fields)


def _plain(value: Any) -> str:
    return rendering.brief(value, 80) if isinstance(value, str) else rendering.on_one_line(value, 80) or "null"


def _note(job: Job, state: Status) -> tuple[str, bool]:
    error, progress = job.error, job.progress
    if progress is not None and state is Status.RUNNING:
        return rendering.progress_line(progress), False
    if error is not None and state is not Status.SUCCEEDED:
        return rendering.error_line(error), True
    return (rendering.on_one_line(job.result) if state is Status.SUCCEEDED else ""), False


@dataclass(slots=True)
class Run:
    """One run of a job.

    Attributes:
        number: counted from the history's first event.
        due: the time from which on it could begin.
        began, ended: times; `ended` is None while it runs.
        worker: of the run.
        end: the kind of event that has ended it; None while it runs.
        detail: of that event.
    """

    number: int
    due: float
    began: float
    worker: str
    ended: float | None = None
    end: HistoryKind | None = None
    detail: str = ""

    @property
    def waited(self) -> float:
        """Seconds until it began."""
        return max(self.began - self.due, 0.0)

    def ran(self, now: float) -> float:
        """Return the seconds that it took so far."""
        return max((now if self.ended is None else self.ended) - self.began, 0.0)


def runs_of(job: Job) -> list[Run]:
    """Return a job's runs as far as its history tells, the oldest first."""
    runs: list[Run] = []
    due = None
    for event in reversed(job.history):
        if event.kind is HistoryKind.STARTED:
            runs.append(Run(len(runs) + 1, event.at if due is None else due, event.at, event.detail))
        elif runs and runs[-1].ended is None and event.kind is not HistoryKind.ADDED:
            runs[-1].ended, runs[-1].end, runs[-1].detail = event.at, event.kind, event.detail
        due = event.at
    run_at = None if job.run_at is None else job.run_at.timestamp()
    if runs and run_at is not None and runs[-1].due < run_at <= runs[-1].began:
        runs[-1].due = run_at  # the record has the due time of the last run only
    return runs


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
                error = "" if job.error is None else rendering.error_line(job.error)
                found.append(Replication(job.type, job.id, status_of(job, now).value, status, error))
    return found


@dataclass(frozen=True, slots=True)
class FilteredPage:
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
    by_time: bool = False,
    most: int = ON_A_PAGE,
    most_read: int = MOST_READ,
) -> FilteredPage:
    """Return one page of matching jobs, with a limit on the number of reads.

    Args:
        service: the service.
        type: the type of the jobs.
        wanted: the filter.
        after: `next` of the previous page.
        newest_first: whether to read in reverse order.
        by_time: whether to read in the order of last events.
        most: a page that reaches this number of jobs ends.
        most_read: a page that has read this number of jobs ends.
    """
    jobs: list[Job] = []
    read = 0
    at_once = _FILTERED_AT_ONCE if wanted.needs_reading else max(min(most, most_read), 1)
    how: dict[str, Any] = {"after": after, "newest_first": newest_first, "by_time": by_time}
    async with aclosing(pages(service, type, wanted, read=at_once, **how)) as found:
        async for page in found:
            jobs += page.jobs
            read += page.read
            # A short page: the store has skipped very many jobs in other states, and returns the next position.
            if page.read < at_once or len(jobs) >= most or read >= most_read:
                return FilteredPage(jobs, page.next, read)
    return FilteredPage(jobs, None, read)


async def one(service: JobsService, type: JobType, id: JobId) -> Job:
    """Return a job without its secret fields; raises as JobsService.get."""
    job = await service.get(type, id)
    return (await service.get_redaction(type)).job(job)


def encoded(text: str) -> bytes:
    """Return a text as UTF-8; lone surrogates, which UTF-8 lacks, are escaped as in JSON: \\ud800."""
    return text.encode(errors="backslashreplace")


# Files


async def export(visit: Visit) -> Response:
    """Return the jobs that match the address's filter as NDJSON or CSV."""
    type, form = visit.type(), visit.query.get("format", "ndjson")
    if form not in _MEDIA:
        return problem_page(visit, 422, "There is no such format", "There are ndjson and csv.")
    wanted = Filter.of_address(visit.query, visit.request.query_params.getlist("data"))
    # Read one job first: if the type is wrong, or the store away, a page says so, instead of a file that breaks off.
    await visit.service.page(type, state=wanted.state, prefix=wanted.prefix, limit=1)
    found = _audited(visit, type, wanted, form)
    lines = _ndjson(found) if form == "ndjson" else _csv(found)
    name = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in shown(type))[:80]
    headers = {
        **SECURITY,
        "Content-Disposition": f'attachment; filename="{name}.{form}"',
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
    return StreamingResponse(lines, media_type=_MEDIA[form], headers=headers)


async def _audited(visit: Visit, type: JobType, wanted: Filter, form: str) -> AsyncIterator[Job]:
    """Yield the matching jobs, and record their number in the audit log at the end."""
    told = 0
    try:
        async for job in matching(visit.service, type, wanted):
            told += 1
            yield job
    finally:
        what = {"format": form, "filter": chosen(wanted.to_dict())}
        visit.state.audit.exported(visit.role.name, visit.request.state.client, type, jobs=told, what=what)


async def _ndjson(found: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    async for job in found:
        yield encoded(json.dumps(wire.listed_job(job), ensure_ascii=False, separators=(",", ":")) + "\n")


async def _csv(found: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    async for job in found:
        writer.writerow(_cells(job))
        yield encoded(text.getvalue())
        text.seek(0)
        text.truncate()
    yield encoded(text.getvalue())


def _cells(job: Job) -> list[Any]:
    fields = wire.listed_job(job)
    fields["type"], fields["id"] = shown(job.type), shown(job.id)
    return [_cell(fields.get(name)) for name in COLUMNS]


def _cell(value: Any) -> str:
    """Return a value for a table; text that a spreadsheet would run as a formula is marked as text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"'{text}" if isinstance(value, str) and text.startswith(_STARTS_A_FORMULA) else text
