"""`periodic`: shows the periodic types with their last and next tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import json_forms
from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption, StoreOption
from jobs_service.cli.tables import Column
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.service.handler_registry import Periodic

OptionalApplication = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours: only it knows when its jobs come next."),
]


class _Row(NamedTuple):
    type: Any
    last: float | None
    paused: bool
    comes: str | None = None
    next: float | None = None
    missed: str | None = None


COLUMNS = (
    Column("type", lambda row: shown(row.type)),
    Column("comes", lambda row: row.comes or ""),
    Column("last", lambda row: output.time_text(row.last)),
    Column("next", lambda row: output.time_text(row.next)),
    Column("missed", lambda row: row.missed or ""),
    Column("paused", lambda row: "yes" * row.paused),
)


def periodic(
    context: typer.Context,
    application: OptionalApplication = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show periodic jobs with their last and next tick.

    Without an application, those in the store are shown. For a type that has not ticked yet, the last tick is the time
    when its handler was first run.
    """
    if application is None:
        rows = session.run(context, store, _ticks)
    else:
        from jobs_service.cli.application import load

        session.refuse_store(context, f"{application} brings its own store", store)
        service = load(application)
        address = service.store.address
        seen = [] if session.missing_store(address) else session.run_at(address, _ticks)
        rows = _scheduled(service.periodic, {shown(row.type): row for row in seen})
    none = "no periodic jobs; make a function's with @jobs.every(period) or @jobs.cron(expression)"
    output.rows(COLUMNS, rows, _form, as_json, none)


async def _ticks(jobs: JobsService) -> list[_Row]:
    """Return the periodic types in the store."""
    return [_Row(type, last, await jobs.paused(type)) for type, last in (await jobs.last_ticks()).items()]


def _scheduled(registered: dict[Any, Periodic], seen: dict[Any, _Row]) -> list[_Row]:
    """Return the periodic types of an application, with their last ticks from the store."""
    from jobs_service.sources import Sources

    now = Sources().wall_time()
    rows = []
    for type, periodic in registered.items():
        schedule = periodic.schedule
        row = seen.get(shown(type), _Row(type, None, False))
        last = None if periodic.last_tick(row.last) is None else row.last
        rows.append(_Row(type, last, row.paused, periodic.in_words, schedule.next_after(now), periodic.missed.value))
    return rows


def _form(row: _Row) -> dict[str, Any]:
    from jobs_service.json_values import time

    return {**row._asdict(), "type": json_forms.name(row.type), "last": time(row.last), "next": time(row.next)}
