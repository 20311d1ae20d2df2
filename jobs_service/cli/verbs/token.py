"""`token`: adds, lists and removes the tokens with which programs and people use a service over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import output, program
from jobs_service.cli.parsing import verb
from jobs_service.names import printable

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.service.remote import TokenRow

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: letters, digits, - _ . @")]
RoleOption = Annotated[str, typer.Option("--role", metavar="ROLE", help="read, work, write or admin.")]


def token_app() -> typer.Typer:
    """Return the verbs about tokens."""
    app = typer.Typer(help="Tokens for HTTP: who may do what.", no_args_is_help=True)
    verb(app, "add", add)
    verb(app, "list", list_tokens)
    verb(app, "remove", remove)
    return app


def add(context: typer.Context, name: NameArgument, role: RoleOption) -> None:
    """Add a token and print it: only its hash is kept, so nobody can read it later.

    Roles: read looks, work also takes and ends jobs, write also adds, changes and removes them, admin also takes types
    away and may run commands.
    """
    from jobs_service.http.tokens import add_token

    async def body(jobs: JobsService) -> str:
        return await add_token(jobs, name, role)

    token = program.run(context, body, rehearsal=body)
    output.tell(context, {"name": name, "role": role, "token": token}, token)


def list_tokens(context: typer.Context) -> None:
    """List names and roles of tokens, and since when they hold; the tokens themselves nobody knows."""

    async def body(jobs: JobsService) -> list[TokenRow]:
        return await jobs.remote.tokens()

    rows = program.run(context, body)
    if not rows and not output.wants_json(context):
        output.line("no tokens")
    for row in rows:
        created = datetime.fromtimestamp(row.created, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        said = f"{printable(row.role)}, since {created}" if row.role else "cannot be read: it lets nobody in, remove it"
        output.tell(context, {"name": row.name, "role": row.role, "created": created}, f"{printable(row.name)}: {said}")


def remove(context: typer.Context, name: NameArgument) -> None:
    """Take a token away: that holds at once, also for open streams of events and for those who have logged in."""

    async def body(jobs: JobsService) -> None:
        await jobs.remote.remove_token(name)

    program.run(context, body)
    output.tell(context, {"name": name}, f"the token {name} holds no longer")
