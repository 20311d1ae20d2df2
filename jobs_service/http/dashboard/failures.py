"""Failed jobs of all types, grouped by what went wrong: since when, how often, and a way to retry a group."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from jobs_service.errors import RecordDamaged
from jobs_service.http.dashboard import figures, texts
from jobs_service.http.dashboard.rendering import page
from jobs_service.http.dashboard.visit import Visit
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobType

MOST_READ: Final = 200
"""Failed jobs that are looked at, the newest of each type."""
LEAST_OF_A_TYPE: Final = 10
_MOST_TYPES: Final = MOST_READ // LEAST_OF_A_TYPE

_VARIES: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|\d+(?:[.:,]\d+)*|'[^']*'|\"[^\"]*\"")
_HOLE: Final = "…"


@dataclass(slots=True)
class Group:
    """Failed jobs with the same error.

    Attributes:
        error: its class.
        message: its message, with … for what differs from job to job.
        fixed: the longest piece of the message that all have.
        jobs: of each type, in the order in which they were found.
        first, last: when the first and the last of them failed, seconds since the epoch; None where nothing says so.
        attempts: runs of all of them.
    """

    error: str
    message: str
    fixed: str
    jobs: dict[JobType, list[Job]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    attempts: int = 0

    @property
    def count(self) -> int:
        """How many jobs there are."""
        return sum(map(len, self.jobs.values()))

    def add(self, job: Job) -> None:
        """Take a job in."""
        self.jobs.setdefault(job.type, []).append(job)
        self.attempts += job.attempts
        at = job.history[0].at if job.history else None
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)


def signature(message: str) -> tuple[str, str]:
    """Return a message without what differs from job to job, and the longest piece of it that does not differ."""
    line = message.strip().partition("\n")[0][:300]
    pieces = _VARIES.split(line)
    fixed = max((piece.strip() for piece in pieces), key=len, default="")
    return texts.brief(_HOLE.join(pieces), 160), fixed


def grouped(jobs: list[Job]) -> list[Group]:
    """Return failed jobs by their errors, those that failed last first."""
    groups: dict[tuple[str, str], Group] = {}
    for job in jobs:
        try:
            error = job.error
            kind, (message, fixed) = ("", ("", "")) if error is None else (error.type, signature(error.message))
            groups.setdefault((kind, message), Group(kind, message, fixed)).add(job)
        except RecordDamaged:
            continue
    return sorted(groups.values(), key=lambda group: -(group.last or 0.0))


async def failures(visit: Visit) -> Response:
    """Return the page."""
    counts = await visit.counts()
    failing = sorted(((each.failed, type) for type, each in counts.items() if each.failed), key=lambda item: -item[0])
    total = sum(number for number, _ in failing)
    looked = failing[:_MOST_TYPES]
    share = max(MOST_READ // max(len(looked), 1), LEAST_OF_A_TYPE)

    async def newest(type: JobType) -> list[Job]:
        found = await visit.service.page(type, state="failed", limit=share, newest_first=True)
        return [*map((await visit.service.get_redaction(type)).job, found.jobs)]

    async def hour(type: JobType) -> figures.Lately:
        return await figures.lately(visit.service, type, "hour", visit.now)

    found = await asyncio.gather(*(newest(type) for _, type in looked))
    happened = await asyncio.gather(*(hour(type) for _, type in looked))
    jobs = [job for some in found for job in some]
    lately = figures.summed([each for one in happened for each in one.intervals])
    groups = [_shown(visit, group) for group in grouped(jobs)]
    context = {
        "total": total,
        "types": [(type, shown(type), number) for number, type in looked],
        "groups": groups,
        "read": len(jobs),
        "is_cut": len(jobs) < total,
        "failed": lately.totals.failed,
        "crashed": lately.totals.crashed,
        "lost": lately.totals.lost,
        "now": visit.now,
    }
    return page(visit, "failures.html", context, live={"of": "types"})


def _shown(visit: Visit, group: Group) -> dict[str, Any]:
    types = []
    for type, jobs in group.jobs.items():
        query = {"type_": type, "state": "failed", "error": group.error, "text": group.fixed}
        types.append(
            {
                "type": type,
                "name": shown(type),
                "count": len(jobs),
                "newest": jobs[0].id,
                "see": visit.url("/type", **query),
                # No filter finds those without an error: it would be about all that failed.
                "retry": visit.url("/bulk/new", action="resubmit", **query) if group.error else "",
            }
        )
    return {
        "error": texts.brief(group.error, 120) or "no error was kept",
        "message": group.message,
        "count": group.count,
        "attempts": group.attempts,
        "first": group.first,
        "last": group.last,
        "types": types,
    }
