"""`serve`: the long-lived daemon. Floor: command line."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs_service.cli import session
from jobs_service.cli.options import Level, StoreOption

ApplicationArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:ATTR]", help="A JobsService of yours; its store and settings are used."),
]
LevelOption = Annotated[Level, typer.Option("--log-level", help="Log nothing less severe.")]


def serve(
    context: typer.Context,
    application: ApplicationArgument = None,
    log_level: LevelOption = "info",
    store: StoreOption = None,
) -> None:
    """Run the supervisor tree until SIGTERM.

    While it runs, jobs whose workers are lost are put back, and scheduled ones are made ready.
    The first signal lets running transactions end and exits with 0, a second one exits at once. Log events go to
    stderr: lines for people on a terminal, JSON elsewhere; `serving` says that it is ready.
    """
    if application is not None and store is not None:
        raise typer.BadParameter(f"{application} brings its own store", param_hint="--store")
    import asyncio

    from jobs_service import JobsService
    from jobs_service.cli.application import load
    from jobs_service.cli.daemon import run
    from jobs_service.cli.logging import configure

    configure(log_level)
    service = JobsService(session.chosen_store(context, store)) if application is None else load(application)
    asyncio.run(run(service))
