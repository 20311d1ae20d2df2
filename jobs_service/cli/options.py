"""Arguments and options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import typer
from typer.core import TyperCommand

DURATION_HELP = "90, 30s, 10m, 1h30m, 2d"

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Verb(TyperCommand):
    """A verb with a usage line as in manuals: `TYPE [ID]`, where typer would write `{TYPE} [ID]`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name."""
        return [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def _types(context: typer.Context, incomplete: str) -> Iterable[str]:
    from jobs_service.cli.verbs import completion

    return completion.types(context, incomplete)


TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", help="The kind of job.", autocompletion=_types)]
OptionalType = Annotated[
    str | None, typer.Argument(metavar="TYPE", help="Only jobs of this type.", autocompletion=_types)
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Names the job within its type.")]
NewTypeOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="S",
        help="Make the type where it is missing, with this activity timeout; one that is there keeps its own: "
        f"{DURATION_HELP}.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="lmdb:PATH (embedded), fdb:[CLUSTER_FILE] (FoundationDB) or memory: (gone at the end). "
        "Default: the variable JOBS_SERVICE_STORE, else lmdb:jobs-data.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="JSON|@FILE|-", help="The job's JSON value; - reads standard input.")
]
PriorityOption = Annotated[
    str | None,
    typer.Option(
        "--priority",
        metavar="N",
        help="Lower runs first: an integer; a string is written '\"text\"' and runs before all integers.",
    ),
]
InOption = Annotated[
    str | None, typer.Option("--in", metavar="10m", help=f"Run no earlier than so long from now: {DURATION_HELP}.")
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="ISO", help="Run no earlier than this time: 2030-01-31T09:00:00+01:00.")
]
