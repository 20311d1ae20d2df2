"""`failures`: shows failed and retrying jobs of all types, grouped by error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption, StoreOption
from jobs_service.cli.tables import Column
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.service.failures import Failures, Group


def _types(group: Group) -> str:
    return ", ".join(map(shown, group.jobs))


def _error(group: Group) -> str:
    return printable(": ".join(filter(None, (group.error or "no error was kept", group.message))))


def _ago(seconds: float | None) -> str:
    from jobs_service.sources import Sources

    return "" if seconds is None else f"{output.duration_text(max(Sources().wall_time() - seconds, 0.0))} ago"


COLUMNS = (
    Column("jobs", lambda group: str(group.count), right=True),
    Column("state", lambda group: group.state, status=True),
    Column("since", lambda group: _ago(group.first), whole=True),
    Column("last", lambda group: _ago(group.last), whole=True),
    Column("types", _types),
    Column("error", _error, cut=True),
)


def failures(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Group failed and retrying jobs by what went wrong.

    It looks at 200 failed jobs, the newest, of the 20 types with most of them, at as many that wait for another attempt
    after a crash, and says so when there are more. What differs from job to job in an error's message is shown as "…".
    """
    found = session.run(context, store, _failures)
    read = {"failed": found.failed, "retrying": found.retrying, "read": found.read}
    output.rows(COLUMNS, found.groups, lambda group: {**group.to_dict(), **read}, as_json, "no failed or retrying jobs")
    if found.is_cut and not as_json:
        output.line(f"{found.read} of the {found.failed} failed and {found.retrying} retrying jobs were looked at")


async def _failures(jobs: JobsService) -> Failures:
    from jobs_service.service.failures import newest_failures

    return await newest_failures(jobs, await jobs.counts())
