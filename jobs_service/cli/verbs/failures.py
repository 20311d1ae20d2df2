"""`failures`: shows failed and retrying jobs of all types, grouped by error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption, StoreOption
from jobs_service.cli.tables import Column
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.service.failures import Failures, Group

COLUMNS = (
    Column("jobs", right=True),
    Column("state", status=True),
    Column("since", whole=True),
    Column("last", whole=True),
    Column("types"),
    Column("error", cut=True),
)


def failures(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Group failed and retrying jobs by what went wrong.

    It looks at 200 failed jobs, the newest, of the 20 types with most of them, at as many that wait for another attempt
    after a crash, and says so when there are more. What differs from job to job in an error's message is shown as "…".
    """
    found = session.run(context, store, _failures)
    rows = [_row(found, group) for group in found.groups]
    output.rows(COLUMNS, rows, _cells, as_json, "no failed or retrying jobs")
    if found.is_cut and not as_json:
        output.line(f"{found.read} of the {found.failed} failed and {found.retrying} retrying jobs were looked at")


async def _failures(jobs: JobsService) -> Failures:
    from jobs_service.service.failures import newest_failures

    return await newest_failures(jobs, await jobs.counts())


def _row(found: Failures, group: Group) -> dict[str, Any]:
    return {
        "state": group.state,
        "error": group.error or None,
        "message": group.message,
        "count": group.count,
        "attempts": group.attempts,
        "first": _time(group.first),
        "last": _time(group.last),
        "types": [
            {"type": shown(type), "count": len(jobs), "newest": shown(jobs[0].id), "filter": group.filter}
            for type, jobs in group.jobs.items()
        ],
        "failed": found.failed,
        "retrying": found.retrying,
        "read": found.read,
    }


def _time(seconds: float | None) -> str | None:
    from datetime import UTC, datetime

    try:
        return None if seconds is None else output.timestamp(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):  # outside the calendar
        return None


def _cells(row: dict[str, Any]) -> list[str]:
    error = ": ".join(filter(None, (row["error"] or "no error was kept", row["message"])))
    types = ", ".join(each["type"] for each in row["types"])
    return [str(row["count"]), row["state"], _ago(row["first"]), _ago(row["last"]), types, printable(error)]


def _ago(time: str | None) -> str:
    from datetime import datetime

    from jobs_service.sources import Sources

    if time is None:
        return ""
    age = Sources().wall_time() - datetime.fromisoformat(time).timestamp()
    return f"{output.duration_text(max(age, 0.0))} ago"
