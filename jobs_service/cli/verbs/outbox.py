"""`outbox`: makes the tables of an outbox in an application's database, and shows what waits or was set aside there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from jobs_service.cli import output, program
from jobs_service.cli.output import Column
from jobs_service.cli.parsing import verb
from jobs_service.names import printable

if TYPE_CHECKING:
    from jobs_service.outbox.databases import Session

T = TypeVar("T")

MOST_SHOWN = 1000

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Of the database: postgresql://USER@HOST/DATABASE, or sqlite:PATH.")
]
DialectArgument = Annotated[str, typer.Argument(metavar="DIALECT", help="postgresql or sqlite.")]
SeqsArgument = Annotated[list[int] | None, typer.Argument(metavar="SEQ...", help="Rows, by their numbers.")]

COLUMNS = (
    Column("seq", lambda row: str(row.seq), right=True, whole=True),
    Column("type", lambda row: printable(str(row.type))),
    Column("id", lambda row: "" if row.id is None else printable(str(row.id))),
    Column("reason", lambda row: printable(str(row.reason)), cut=True),
)


def outbox_app() -> typer.Typer:
    """Return the verb with its sub-verbs."""
    app = typer.Typer(rich_markup_mode=None, help="Jobs in the database of an application.")
    verb(app, "init", init, "")
    verb(app, "sql", sql, "")
    verb(app, "show", show, "as_json")
    verb(app, "retry", retry, "")
    return app


def init(url: UrlArgument) -> None:
    """Make the tables in a database, unless they are there."""
    name = _run(url, lambda session: session.make_tables())[0]
    output.line(f"{name} has the tables jobs_service_outbox, jobs_service_once and jobs_service_tables")


def sql(dialect: DialectArgument) -> None:
    """Print the statements that make the tables, for migrations of your own."""
    from jobs_service.outbox import schema

    output.line(schema(dialect).rstrip("\n"))


def show(context: typer.Context, url: UrlArgument) -> None:
    """Show how many jobs wait in a database, for how long, and the rows that cannot be jobs, with the reasons."""

    async def body(session: Session) -> Any:
        await session.outbox()
        return await session.lag(), await session.rows_set_aside(MOST_SHOWN)

    name, (lag, rows) = _run(url, body)
    if output.wants_json(context):
        aside = [row._asdict() for row in rows]
        output.json_line({"outbox": name, **lag._asdict(), "rows_set_aside": aside})
        return
    since = "" if lag.oldest is None else f", the oldest for {output.duration_text(lag.oldest)}"
    output.line(f"{name}: {output.many(lag.rows, 'job')} to be moved{since}; {lag.set_aside} set aside")
    if rows:
        output.table(COLUMNS, rows)


def retry(url: UrlArgument, seqs: SeqsArgument = None) -> None:
    """Have rows that were set aside tried again; all of them if none is named."""
    name, number = _run(url, lambda session: session.retry(seqs or None))
    if seqs and number < len({*seqs}):
        raise program.AnswerIsNo(f"{name}: {number} of these rows {'was' if number == 1 else 'were'} set aside")
    output.line(f"{name}: {output.many(number, 'row')} will be tried again")


def _run(url: str, body: Callable[[Session], Coroutine[Any, Any, T]]) -> tuple[str, T]:
    """Return the name of the database at an address, and the result of a function of a session with it."""
    import asyncio

    from jobs_service.errors import StoreError
    from jobs_service.outbox.databases import DatabaseAway, database_at

    database = database_at(url)

    async def run() -> T:
        async with database.session() as session:
            return await body(session)

    try:
        return database.name, asyncio.run(run())
    except DatabaseAway as error:
        raise StoreError(f"{database.name}: {error}") from None
