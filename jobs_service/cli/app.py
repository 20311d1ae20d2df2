"""Assembles the verbs into one program, and runs one command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from jobs_service.cli import output, parsing, program
from jobs_service.cli.parsing import StoreOption, verb
from jobs_service.cli.verbs.add import add, add_many
from jobs_service.cli.verbs.change import cancel, remove, resubmit, retry
from jobs_service.cli.verbs.change import run as run_job
from jobs_service.cli.verbs.copy import backup, copy
from jobs_service.cli.verbs.handlers import handlers, periodic, schedules_app
from jobs_service.cli.verbs.health import failures, health, verify
from jobs_service.cli.verbs.list import list_jobs, show
from jobs_service.cli.verbs.outbox import outbox_app
from jobs_service.cli.verbs.processes import processes_app, workers
from jobs_service.cli.verbs.replicate import replicate, replications
from jobs_service.cli.verbs.serve import serve, token_app
from jobs_service.cli.verbs.stats import stats, top
from jobs_service.cli.verbs.submit import submit
from jobs_service.cli.verbs.types import pause, redact, resume, retention, types_app
from jobs_service.cli.verbs.watch import watch

VersionOption = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=lambda wanted: _print_version(wanted), help="Print the version."),
]
HELP = """Durable background jobs on an embedded store or a FoundationDB cluster, under a supervisor tree.

Exit codes: 0 done; 1 the answer is no (not found, exists already, timed out, conflict); 2 wrong usage or bad input;
3 the store cannot be reached or used.
"""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command line and return its exit code; an error is one line on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # Under an old locale, a character that it cannot encode must not fail the verb.
            reconfigure(errors="backslashreplace")
    return program.guard(lambda: _invoke(given))


def _open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that the shell has closed.

    Otherwise the next opened file, such as the store's, would get that descriptor, and the output would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open for as long as the process runs


def _invoke(arguments: list[str]) -> None:
    command = typer.main.get_command(application())
    if parsing.completion_asked():
        parsing.answer_completion(command)
    with command.make_context(program.PROGRAM, arguments) as context:
        command.invoke(context)


def application() -> typer.Typer:
    """Build the program. Its help is plain text, because rich is slower and its output varies between terminals."""
    app = typer.Typer(
        help=HELP, add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.callback()(_root)
    app.add_typer(types_app(), name="types")
    verb(app, "add", add)
    verb(app, "add-many", add_many)
    # Everything after the program's name belongs to that program, even words that look like options.
    verb(app, "submit", submit, allow_interspersed_args=False)
    verb(app, "list", list_jobs, "store")
    verb(app, "show", show)
    verb(app, "watch", watch)
    verb(app, "retry", retry)
    verb(app, "cancel", cancel)
    verb(app, "remove", remove)
    verb(app, "run", run_job)
    verb(app, "resubmit", resubmit)
    verb(app, "pause", pause)
    verb(app, "resume", resume)
    verb(app, "retention", retention)
    verb(app, "redact", redact)
    verb(app, "stats", stats)
    verb(app, "top", top)
    verb(app, "workers", workers)
    verb(app, "failures", failures)
    app.add_typer(processes_app(), name="processes")
    verb(app, "periodic", periodic)
    app.add_typer(schedules_app(), name="schedules")
    verb(app, "handlers", handlers, "as_json")
    verb(app, "health", health)
    verb(app, "replicate", replicate)
    verb(app, "replications", replications)
    verb(app, "serve", serve, "store")
    app.add_typer(outbox_app(), name="outbox")
    app.add_typer(token_app(), name="token")
    verb(app, "backup", backup)
    verb(app, "copy", copy, "as_json")
    verb(app, "verify", verify)
    verb(app, "completion", parsing.completion, "")
    return app


def _root(store: StoreOption = None, version: VersionOption = False) -> None:
    pass  # `program` finds the store in the context


def _print_version(wanted: bool) -> None:
    if wanted:
        from jobs_service import __version__

        output.line(f"{program.PROGRAM} {__version__}")
        raise typer.Exit
