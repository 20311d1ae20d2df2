"""Arguments and options that several verbs share. Floor: command line."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import typer

DURATION_HELP = "90, 30s, 10m, 1h30m, 2d"

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", help="The kind of job.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Names the job within its type.")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="lmdb:PATH. Default: the variable JOBS_SERVICE_STORE, else lmdb:jobs-data.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="JSON|@FILE|-", help="The job's JSON value; - reads standard input.")
]
PriorityOption = Annotated[
    str | None, typer.Option("--priority", metavar="N", help="Lower runs first: an integer, else a string.")
]
InOption = Annotated[
    str | None, typer.Option("--in", metavar="10m", help=f"Run no earlier than so long from now: {DURATION_HELP}.")
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="ISO", help="Run no earlier than this time: 2030-01-31T09:00:00+01:00.")
]
