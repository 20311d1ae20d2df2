"""`serve`: runs the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import session
from jobs_service.cli.names import PREFIX, parse_type, shown
from jobs_service.cli.options import Level, StoreOption

if TYPE_CHECKING:
    from jobs_service import JobsService

ApplicationArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:ATTR", help="A JobsService of yours; its store and settings are used."),
]
LevelOption = Annotated[Level, typer.Option("--log-level", help="Log nothing less severe.")]


CommandsOption = Annotated[
    bool,
    typer.Option(
        "--commands", help="Run command jobs too: who can add jobs to the store can then run anything as this user."
    ),
]
ReplicationsOption = Annotated[
    bool, typer.Option("--replications", help="Run replications too; needs the extra `replication`.")
]
TypesOption = Annotated[
    list[str] | None,
    typer.Option("--types", metavar="A,B", help="Run only the handlers of these types; may be given several times."),
]
MaxJobsOption = Annotated[
    int | None, typer.Option("--max-jobs", metavar="N", min=1, help="Run at most so many jobs at the same time.")
]


def serve(
    context: typer.Context,
    application: ApplicationArgument = None,
    commands: CommandsOption = False,
    replications: ReplicationsOption = False,
    types: TypesOption = None,
    max_jobs: MaxJobsOption = None,
    log_level: LevelOption = "info",
    store: StoreOption = None,
) -> None:
    """Run handlers and the supervisor tree until SIGTERM.

    It runs the handlers of the application, with --types only some of them. Jobs of all types whose workers are lost
    are put back, and scheduled jobs are made ready; without handlers, that is all it does.

    After the first signal, running handlers and transactions may end; the jobs of those that do not are given back, and
    the exit code is 0. A second signal exits at once. On SIGHUP the handlers' options are read again from the file that
    JOBS_SERVICE_SETTINGS names. Log events go to stderr: lines for people on a terminal, JSON elsewhere. The event
    `serving` says that it is ready.
    """
    if application is not None:
        session.refuse_store(context, f"{application} brings its own store", store)
    from jobs_service import JobsService
    from jobs_service.cli import daemon
    from jobs_service.cli.application import load
    from jobs_service.cli.logging import configure

    configure(log_level)
    service = JobsService(session.chosen_store(context, store)) if application is None else load(application)
    if commands and not _runs_commands(service):
        service.commands()
    if replications:
        _run_replications(service)
    raise typer.Exit(daemon.serve(service, _handled(service, types), max_jobs))


def _handled(service: JobsService, names: list[str] | None) -> list[Any] | None:
    """Return the types to run; None for all.

    Raises:
        typer.BadParameter: a type has no handler.
    """
    if names is None:
        return None
    # JSON may contain commas.
    parts = [part for name in names for part in ([name] if name.startswith(PREFIX) else name.split(","))]
    types = [parse_type(part) for part in parts if part]
    missing = [type for type in types if type not in service.handlers]
    if missing or not types:
        known = ", ".join(shown(type) for type in service.handlers) or "none"
        what = f"type {shown(missing[0])} has no handler" if missing else "no type is named"
        raise typer.BadParameter(f"{what}; there are: {known}", param_hint="--types")
    return types


def _runs_commands(service: JobsService) -> bool:
    from jobs_service.runner.commands import COMMAND_TYPE

    handler = service.handlers.get(COMMAND_TYPE)
    return handler is not None and handler.kind == "command"


def _run_replications(service: JobsService) -> None:
    """Have a service run replications, unless it does by itself.

    Raises:
        typer.BadParameter: what that needs is not installed.
    """
    from importlib.util import find_spec

    from jobs_service.replication import register_replication
    from jobs_service.replication.stored import ONE_SHOT

    if find_spec("aiohttp") is None:
        raise typer.BadParameter(
            "it needs aiohttp: pip install 'jobs-service[replication]'", param_hint="--replications"
        )
    if ONE_SHOT not in service.handlers:
        register_replication(service)
