"""`token`: adds, lists and removes the tokens with which programs and people use a service over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import output, program
from jobs_service.cli.parsing import JsonOption, StoreOption, Verb
from jobs_service.names import printable

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.service.remote import TokenRow

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: letters, digits, - _ . @")]
RoleOption = Annotated[str, typer.Option("--role", metavar="ROLE", help="read, work, write or admin.")]


def token_app() -> typer.Typer:
    """Return the verbs about tokens."""
    app = typer.Typer(help="Tokens for HTTP: who may do what.", no_args_is_help=True)
    app.command("add", cls=Verb)(add)
    app.command("list", cls=Verb)(list_tokens)
    app.command("remove", cls=Verb)(remove)
    return app


def add(
    context: typer.Context,
    name: NameArgument,
    role: RoleOption,
    store: StoreOption = None,
    as_json: JsonOption = None,
) -> None:
    """Add a token and print it: only its hash is kept, so nobody can read it later.

    Roles: read looks, work also takes and ends jobs, write also adds, changes and removes them, admin also takes types
    away and may run commands.
    """
    from jobs_service.http.tokens import add_token

    async def body(jobs: JobsService) -> str:
        return await add_token(jobs, name, role)

    token = program.run(context, store, body, rehearsal=body)
    if as_json:
        output.json_line({"name": name, "role": role, "token": token})
    else:
        output.line(token)


def list_tokens(context: typer.Context, store: StoreOption = None, as_json: JsonOption = None) -> None:
    """List names and roles of tokens, and since when they hold; the tokens themselves nobody knows."""

    async def body(jobs: JobsService) -> list[TokenRow]:
        return await jobs.remote.tokens()

    rows = program.run(context, store, body)
    if not rows and not as_json:
        output.line("no tokens")
    for row in rows:
        created = datetime.fromtimestamp(row.created, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        said = f"{printable(row.role)}, since {created}" if row.role else "cannot be read: it lets nobody in, remove it"
        if as_json:
            output.json_line({"name": row.name, "role": row.role, "created": created})
        else:
            output.line(f"{printable(row.name)}: {said}")


def remove(context: typer.Context, name: NameArgument, store: StoreOption = None, as_json: JsonOption = None) -> None:
    """Take a token away: that holds at once, also for open streams of events and for those who have logged in."""

    async def body(jobs: JobsService) -> None:
        await jobs.remote.remove_token(name)

    program.run(context, store, body)
    if as_json:
        output.json_line({"name": name})
    else:
        output.line(f"the token {name} holds no longer")
