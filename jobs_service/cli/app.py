"""The verbs put together, and the frame in which one of them runs. Floor: command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from jobs_service.cli import (
    adding,
    backing_up,
    bulk,
    changing,
    completing,
    copying,
    describing,
    exits,
    gauging,
    health,
    looking,
    output,
    pausing,
    replicating,
    retaining,
    serving,
    submitting,
    type_verbs,
    watching,
    working,
)
from jobs_service.cli.options import StoreOption, Verb
from jobs_service.cli.quickstart import quickstart
from jobs_service.cli.session import Chosen

VersionOption = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=lambda wanted: _print_version(wanted), help="Print the version."),
]
HELP = """Durable background jobs on an embedded store or a FoundationDB cluster, under a supervisor tree.

Exit codes: 0 done; 1 the answer is no (not found, exists already, timed out, conflict); 2 wrong usage or bad input;
3 the store cannot be reached or used.
"""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command line and return its exit code; errors are one line on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # An old locale must not turn a sign it lacks into a failure.
            reconfigure(errors="backslashreplace")
    return exits.guard(lambda: _invoke(given))


def _open_closed_streams() -> None:
    """Put nothing where a shell has closed a stream: else a store's file would take its number, and be written to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open for as long as the process runs


def _invoke(arguments: list[str]) -> None:
    command = typer.main.get_command(application())
    if completing.is_asked():
        completing.answer(command)
    with command.make_context(exits.PROGRAM, arguments) as context:
        command.invoke(context)


def application() -> typer.Typer:
    """Build the application; its help is plain text, quick and the same everywhere."""
    app = typer.Typer(
        help=HELP,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.add_typer(type_verbs.verbs(), name="types")
    app.command("add", cls=Verb)(adding.add)
    app.command("add-many", cls=Verb)(bulk.add_many)
    # What stands behind the command's name is the command's, also what looks like an option.
    app.command("submit", cls=Verb, context_settings={"allow_interspersed_args": False})(submitting.submit)
    app.command("list", cls=Verb)(looking.list_jobs)
    app.command("show", cls=Verb)(looking.show)
    app.command("watch", cls=Verb)(watching.watch)
    app.command("remove", cls=Verb)(changing.remove)
    app.command("resubmit", cls=Verb)(changing.resubmit)
    app.command("pause", cls=Verb)(pausing.pause)
    app.command("resume", cls=Verb)(pausing.resume)
    app.command("retention", cls=Verb)(retaining.retention)
    app.command("stats", cls=Verb)(gauging.stats)
    app.command("top", cls=Verb)(gauging.top)
    app.command("workers", cls=Verb)(working.workers)
    app.command("periodic", cls=Verb)(describing.periodic)
    app.command("handlers", cls=Verb)(describing.handlers)
    app.command("health", cls=Verb)(health.health)
    app.command("replicate", cls=Verb)(replicating.replicate)
    app.command("replications", cls=Verb)(replicating.replications)
    app.command("serve", cls=Verb)(serving.serve)
    app.command("quickstart", cls=Verb)(quickstart)
    app.command("backup", cls=Verb)(backing_up.backup)
    app.command("copy", cls=Verb)(copying.copy)
    app.command("completion", cls=Verb)(completing.completion)
    return app


def _root(context: typer.Context, store: StoreOption = None, version: VersionOption = False) -> None:
    context.obj = Chosen(store)


def _print_version(wanted: bool) -> None:
    if wanted:
        from jobs_service import __version__

        output.line(f"{exits.PROGRAM} {__version__}")
        raise typer.Exit
