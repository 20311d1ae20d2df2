"""`periodic`: shows the periodic types with their last and next tick."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

COLUMNS = (Column("type"), Column("comes"), Column("last"), Column("next"), Column("missed"), Column("paused"))


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
        rows = _scheduled(service.periodic, {row["type"]: row for row in seen})
    none = "no periodic jobs; make a function's with @jobs.every(period) or @jobs.cron(expression)"
    output.rows(COLUMNS, rows, _cells, as_json, none)


async def _ticks(jobs: JobsService) -> list[dict[str, Any]]:
    """Return the periodic types in the store."""
    return [
        {
            "type": shown(type),
            "comes": None,
            "last": output.timestamp(_time(last)),
            "next": None,
            "missed": None,
            "paused": await jobs.paused(type),
        }
        for type, last in (await jobs.last_ticks()).items()
    ]


def _scheduled(registered: dict[Any, Periodic], seen: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the periodic types of an application, with their last ticks from the store."""
    from jobs_service.sources import Sources

    now = Sources().wall_time()
    rows = []
    for type, periodic in registered.items():
        schedule = periodic.schedule
        row = seen.get(shown(type), {"last": None, "paused": False})
        noted = None if row["last"] is None else datetime.fromisoformat(row["last"]).timestamp()
        rows.append(
            {
                "type": shown(type),
                "comes": periodic.in_words,
                "last": None if periodic.last_tick(noted) is None else row["last"],
                "next": output.timestamp(_time(schedule.next_after(now))),
                "missed": periodic.missed.value,
                "paused": row["paused"],
            }
        )
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    def time(field: str) -> str:
        return "" if row[field] is None else output.time_text(datetime.fromisoformat(row[field]))

    return [row["type"], row["comes"] or "", time("last"), time("next"), row["missed"] or "", "yes" * row["paused"]]


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None or math.isinf(seconds) else datetime.fromtimestamp(seconds, UTC)
