"""`processes`: shows the processes that use the store, and quiets, resumes or stops one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service import __version__
from jobs_service.cli import output, session
from jobs_service.cli.options import JsonOption, StoreOption, Verb
from jobs_service.cli.tables import Column
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import JobsService, ProcessInfo

_MOST_NAMED = 10


def _since(seconds: float) -> str:
    """Return the time since a moment, which is shorter than the moment itself on a narrow terminal."""
    return output.duration_text(max(time.time() - seconds, 0.0))  # the clock of the process may be ahead


def _handlers(info: ProcessInfo) -> str:
    names = [shown(each.type) for each in info.handlers]
    more = len(names) + info.unnamed - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")


COLUMNS = (
    Column("id", lambda info: printable(info.id), whole=True),
    Column("state", lambda info: info.state.value),
    Column("worker", lambda info: printable(info.worker)),
    Column("role", lambda info: printable(info.role)),
    Column("version", lambda info: printable(info.version), nothing=__version__),
    Column("up", lambda info: _since(info.started), right=True),
    Column("heard", lambda info: _since(info.heard), right=True),
    Column("taken", lambda info: f"{info.taken}/{info.slots}", right=True),
    Column("handlers", _handlers, cut=True),
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Of the process, as `jobs-service processes` shows it.")]


def processes_app() -> typer.Typer:
    """Return the verb with its sub-verbs `quiet`, `resume` and `stop`."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(invoke_without_command=True)(processes)
    app.command("quiet", cls=Verb)(quiet)
    app.command("resume", cls=Verb)(resume)
    app.command("stop", cls=Verb)(stop)
    return app


def processes(context: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show the processes that run handlers, and daemons.

    Of each are shown its state, its version if some process has another one than this command, for how long it has been
    up, how long ago its last heartbeat was (by its own clock; --json has the times), how many of its slots were taken
    then, and what it runs. Programs that only add jobs are not listed. A process that was killed is shown for a day: as
    dead at once where all processes are on one machine, else as silent, when five of its heartbeats have not come.
    """
    if context.invoked_subcommand is not None:
        context.obj = session.GlobalOptions(session.chosen_store(context, store))
        return

    async def body(jobs: JobsService) -> list[ProcessInfo]:
        return await jobs.processes()

    found = session.run(context, store, body)
    none = "no process runs handlers; jobs-service serve MODULE:ATTR does"
    output.rows(COLUMNS, found, lambda info: info.to_dict(), as_json, none)


def quiet(context: typer.Context, id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Have a process take no more jobs; those that run go on, and it stays."""
    _ask(context, id, store, as_json, "quiet", "takes no more jobs; those that run go on")


def resume(context: typer.Context, id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Have a quiet process take jobs again."""
    _ask(context, id, store, as_json, "resume", "takes jobs again")


def stop(context: typer.Context, id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Have a process end, as on SIGTERM: handlers get their grace; jobs that do not end in it are given back."""
    _ask(context, id, store, as_json, "stop", "ends; its running jobs get their grace")


def _ask(context: typer.Context, id: str, store: str | None, as_json: bool, action: str, what: str) -> None:
    from jobs_service.model import ProcessAction

    async def body(jobs: JobsService) -> ProcessInfo:
        return await jobs.ask_process(id, ProcessAction(action), _user())

    before = session.run(context, store, body)
    if as_json:
        output.json_line({"id": before.id, "asked": action, "before": before.to_dict()})
        return
    name = f"process {before.id} ({printable(before.worker)})"
    if before.state == "silent":
        output.line(f"{name} was not heard of since {output.time_text(before.heard)}; it is told when it comes back")
    else:
        output.line(f"{name} {what}")


def _user() -> str:
    """Return the name of the user on this machine."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
