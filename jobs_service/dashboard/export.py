"""Export of all matching jobs as a file, streamed, so that their number does not matter."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from jobs_service.dashboard import jobs
from jobs_service.dashboard.errors import problem_page
from jobs_service.dashboard.rendering import SECURITY
from jobs_service.dashboard.visit import Visit
from jobs_service.http import wire
from jobs_service.http.audit import chosen
from jobs_service.model import Job, JobType
from jobs_service.names import shown
from jobs_service.service.selection import Filter, matching

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


async def export(visit: Visit) -> Response:
    """Return the jobs that match the address's filter as NDJSON or CSV."""
    type, form = visit.type(), visit.query.get("format", "ndjson")
    if form not in _MEDIA:
        return problem_page(visit, 422, "There is no such format", "There are ndjson and csv.")
    wanted = Filter.of_address(visit.query, visit.request.query_params.getlist("data"))
    # Read one job first: if the type is wrong, or the store away, a page says so, instead of a file that breaks off.
    await visit.service.page(type, state=wanted.state, prefix=wanted.prefix, limit=1)
    found = _told(visit, type, wanted, form)
    lines = _ndjson(found) if form == "ndjson" else _csv(found)
    name = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in shown(type))[:80]
    headers = {
        **SECURITY,
        "Content-Disposition": f'attachment; filename="{name}.{form}"',
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
    return StreamingResponse(lines, media_type=_MEDIA[form], headers=headers)


async def _told(visit: Visit, type: JobType, wanted: Filter, form: str) -> AsyncIterator[Job]:
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
        yield jobs.json_line(job)


async def _csv(found: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    async for job in found:
        writer.writerow(_cells(job))
        yield jobs.encoded(text.getvalue())
        text.seek(0)
        text.truncate()
    yield jobs.encoded(text.getvalue())


def _cells(job: Job) -> list[Any]:
    fields = wire.listed_job(job)
    fields["type"], fields["id"] = shown(job.type), shown(job.id)
    return [_cell(fields.get(name)) for name in COLUMNS]


def _cell(value: Any) -> str:
    """Return a value for a table; text that a spreadsheet would run as a formula is marked as text."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"'{text}" if isinstance(value, str) and text.startswith(_STARTS_A_FORMULA) else text
