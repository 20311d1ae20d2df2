"""`stats` and `top`: count the jobs of each type by state, once or live."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program, terminal
from jobs_service.cli.output import Column, Table
from jobs_service.cli.parsing import DURATION_HELP, OptionalType, parse_type
from jobs_service.names import shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import Interval, JobsService, QueueState, TypeCounts
    from jobs_service.model.process import OutboxInfo

NO_TYPES: Final = "no types; jobs-service types set TYPE SECONDS makes one"
_ALWAYS: Final = ("ready", "running", "succeeded")

TYPE: Final = Column("type", lambda row: shown(row.type), whole=True)
PAUSED: Final = Column("paused", lambda row: "yes" if row.paused else "no", nothing="no")

MOST_MINUTES: Final = 3 * 3600.0
"""Longest time in seconds that `stats --since` shows by the minute."""
QUIET: Final = "nothing has happened"

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="S",
        help=f"The events of so long, minute by minute or, of more than 3 h, hour by hour: {DURATION_HELP}.",
    ),
]
IntervalOption = Annotated[
    str, typer.Option("--interval", metavar="S", help=f"Time between two updates: {DURATION_HELP}.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Show it once.")]


class CountedType(NamedTuple):
    """A type with its counts.

    Attributes:
        type: its name.
        counts: its jobs by status, and what happened to them.
        queue: the front of its queue.
        added, ended, crashed: events per second since the counts were read before.
    """

    type: Any
    counts: TypeCounts
    queue: QueueState
    added: float = 0.0
    ended: float = 0.0
    crashed: float = 0.0

    @property
    def paused(self) -> bool:
        """Whether its workers are stopped from accepting jobs."""
        return self.queue.paused


Everything: TypeAlias = "tuple[list[CountedType], list[OutboxInfo]]"


def _count(status: str) -> Column:
    nothing = "" if status in _ALWAYS else "0"
    return Column(status, lambda row: str(getattr(row.counts, status)), right=True, nothing=nothing)


def _oldest(row: CountedType) -> str:
    return "" if row.queue.id is None else shown(row.queue.id)


def _waiting(row: CountedType) -> str:
    since = row.queue.ready_since
    return "" if row.queue.id is None or since is None else output.since_text(since)


COUNTS: Final = tuple(map(_count, output.STYLES))
QUEUE: Final = (Column("ready for", _waiting, right=True), Column("oldest ready", _oldest, whole=True))
COLUMNS: Final = (TYPE, *COUNTS, PAUSED, *QUEUE)


def _total(name: str) -> Column:
    return Column(name, lambda interval: str(getattr(interval.totals, name)), right=True, nothing="0")


def _time(name: str, percent: int) -> Column:
    def of(interval: Interval) -> str:
        seconds = getattr(interval, name).percentile(percent)
        return "" if seconds is None else output.duration_text(seconds)

    return Column(f"{name} p{percent}", of, right=True)


PAST: Final = (
    Column("from", lambda interval: output.time_text(interval.begin), whole=True),
    *map(_total, ("added", "started", "succeeded", "failed", "canceled", "crashed", "lost", "released")),
    *(_time(name, percent) for name in ("waited", "ran") for percent in (50, 95)),
)


def stats(context: typer.Context, type: OptionalType = None, since: SinceOption = None) -> None:
    """Count jobs by state.

    Ready jobs could run now, scheduled ones are not due, retrying ones wait for another attempt as their last run has
    crashed. The job that has been ready for longest is shown with the time for which it has been; then, of all types,
    the outboxes that processes relay. With -o json, everything is printed that is counted.
    """
    only = None if type is None else parse_type(type)
    if since is not None:
        if only is None:
            raise typer.BadParameter("it is about one type; name its TYPE", param_hint="--since")
        from jobs_service.json_types import plain

        seconds = parsing.duration(since, "--since")
        output.rows(context, PAST, program.run(context, lambda jobs: _past(jobs, only, seconds)), plain, QUIET)
        return
    if only is None:
        _print(context, program.run(context, _everything))
        return
    found = program.run(context, lambda service: counted(service, only))
    if not found:
        raise program.AnswerIsNo(f"there is no type {shown(only)}")
    _print(context, (found, []))


async def _past(jobs: JobsService, type: Any, seconds: float) -> list[Interval]:
    await program.require_type(jobs, type)
    resolution: Literal["minute", "hour"] = "minute" if seconds <= MOST_MINUTES else "hour"
    found = await jobs.throughput(type, since=max(jobs.wall_time() - seconds, 0.0), resolution=resolution)
    return [each for each in found if any(astuple(each.totals))]


def _print(context: typer.Context, found: Everything) -> None:
    types, outboxes = found
    output.rows(context, COLUMNS, types, _form, NO_TYPES)
    for each in outboxes:
        if output.wants_json(context):
            form = asdict(each)
            output.json_line({"outbox": form.pop("name"), **form})
        else:
            output.line(output.outbox_text(each))


async def _everything(jobs: JobsService) -> Everything:
    """Return the counts of all types, and the outboxes that processes relay."""
    from jobs_service.service.presence import relayed

    return await counted(jobs), relayed(await jobs.processes())


async def counted(jobs: JobsService, only: Any = None) -> list[CountedType]:
    """Return the counts of each type, also of types without jobs."""
    counts = await jobs.counts(only)
    found = map(CountedType, counts, counts.values(), await jobs.queue_states(counts))
    return sorted(found, key=lambda row: shown(row.type))


def _form(row: CountedType) -> dict[str, Any]:
    from jobs_service.json_types import plain

    queue = plain(row.queue)
    return {"type": names.name(row.type), "paused": row.paused, **plain(row.counts), "queue": queue}


# Live


def top(context: typer.Context, interval: IntervalOption = "2", once: OnceOption = False) -> None:
    """Show counts and rates live, until q or Ctrl-C.

    The rates are those of jobs that were added, that ended, and that crashed, per second. Keys: q ends, s sorts by
    another column, space reads again at once, p pauses, + and - change the interval. If the output is not a terminal,
    and with -o json, the counts are shown once.
    """
    seconds = parsing.positive_duration(interval, "--interval")
    if once or output.wants_json(context) or not sys.stdout.isatty():
        _print(context, program.run(context, _everything))
        return
    try:
        program.run(context, lambda jobs: _Top(jobs, seconds).show())
    except KeyboardInterrupt:
        raise typer.Exit from None


def _rate(name: str, called: str) -> Column:
    return Column(called, lambda row: f"{getattr(row, name):.1f}", right=True, nothing="0.0")


RATES: Final = (_rate("added", "in/s"), _rate("ended", "out/s"), _rate("crashed", "crash/s"))
LIVE_COLUMNS: Final = (TYPE, *RATES, *COLUMNS[1:])
ORDERS: Final[Mapping[str, Callable[[CountedType], Any]]] = {
    "work": lambda row: (-row.counts.running - row.counts.ready, shown(row.type)),
    "rate": lambda row: (-row.added - row.ended, shown(row.type)),
    "failures": lambda row: (-row.crashed, -row.counts.retrying - row.counts.failed, shown(row.type)),
    "name": lambda row: shown(row.type),
}
KEYS: Final = "q quit  s sort  space now  p pause  + - interval"


class _Top:
    """The screen of `top`.

    Args:
        jobs: the service.
        seconds: between two updates.
    """

    def __init__(self, jobs: JobsService, seconds: float) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self._order = next(iter(ORDERS))
        self._is_paused = False
        self._before: tuple[float, dict[Any, TypeCounts]] = (0.0, {})
        self._rows: list[CountedType] = []
        self._outboxes: list[OutboxInfo] = []

    async def show(self) -> None:
        """Show the counts until the key q."""
        import asyncio

        from rich.live import Live
        from rich.text import Text

        screen = Live(console=output.console(), auto_refresh=False, screen=True)
        with terminal.cursor_given_back(sys.stdout), terminal.keys() as keys, screen as live:
            while True:
                if not self._is_paused:
                    await self._read()
                live.update(Text.from_ansi("\n".join(self._lines())), refresh=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds):
                        if not self._heed(await keys.get()):
                            return

    async def _read(self) -> None:
        import asyncio

        now, (before, counts) = asyncio.get_running_loop().time(), self._before
        found, self._outboxes = await _everything(self._jobs)
        self._rows = [_with_rates(row, counts.get(row.type), now - before) for row in found]
        self._before = now, {row.type: row.counts for row in found}

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the screen, no more than it has."""
        at = output.time_text(Sources().wall_time())
        state = "paused" if self._is_paused else f"every {self._seconds:g} s"
        yield output.cut(f"{at}  {state}, by {self._order}  {self._jobs.store.location}", output.width())
        table = Table(LIVE_COLUMNS)
        rows = [*map(table.row, sorted(self._rows, key=ORDERS[self._order]))]
        room = shutil.get_terminal_size((80, 24)).lines - 4 - len(self._outboxes)
        yield from table.lines(rows[:room])
        if len(rows) > room:
            yield f"and {output.many(len(rows) - room, 'type')} more"
        yield from (output.cut(output.outbox_text(each), output.width()) for each in self._outboxes)
        yield output.cut(KEYS, output.width())

    def _heed(self, key: str) -> bool:
        """Do what a key asks for; return whether to go on."""
        if key == "s":
            orders = [*ORDERS]
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        elif key == "p":
            self._is_paused = not self._is_paused
        elif key in "+-":
            self._seconds = min(max(self._seconds * (2 if key == "+" else 0.5), 0.25), 60.0)
        return key != "q"


def _with_rates(row: CountedType, before: TypeCounts | None, seconds: float) -> CountedType:
    if before is None:
        return row
    was, now = before.totals, row.counts.totals
    ended = now.succeeded + now.failed + now.canceled - was.succeeded - was.failed - was.canceled
    added, crashed = now.added - was.added, now.crashed - was.crashed
    return row._replace(added=added / seconds, ended=ended / seconds, crashed=crashed / seconds)
