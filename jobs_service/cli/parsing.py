"""Arguments and options that several verbs share, and their values: types, ids, durations, times, JSON, files.

The completion of such values in a shell is here as well.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal, TypeAlias, get_type_hints

import typer
from typer.core import TyperCommand

from jobs_service import durations, json_data
from jobs_service.cli import output, program
from jobs_service.cli.output import Json
from jobs_service.cli.program import PROGRAM
from jobs_service.names import parsed, parsed_priority, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import JobsService

DURATION_HELP = "90, 30s, 10m, 1h30m, 2d"

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
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
        help="lmdb:PATH or sqlite:PATH (embedded), fdb:[CLUSTER_FILE] (FoundationDB) or memory: (gone at the end). "
        "Default: the variable JOBS_SERVICE_STORE, else lmdb:jobs-data.",
    ),
]
JsonOption = Annotated[
    Json, typer.Option("-o", "--output", metavar="json", help="json prints one JSON object per line, for programs.")
]
_OPTIONS: Final = {"store": StoreOption, "as_json": JsonOption}
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


# Verbs


class Verb(TyperCommand):
    """A verb with a usage line as in manuals: `TYPE [ID]`, where typer would write `{TYPE} [ID]`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name."""
        return [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def verb(app: typer.Typer, name: str, function: Callable[..., None], *options: str, **settings: Any) -> None:
    """Add a verb to a program.

    Args:
        options: as `with_options` takes them; without any, all.
        settings: of click's context.
    """
    app.command(name, cls=Verb, context_settings=settings)(with_options(function, *options))


def with_options(verb: Callable[..., None], *options: str) -> Callable[..., None]:
    """Give a verb options that it does not take itself: `program` and `output` find them in its context.

    Args:
        verb: the function.
        options: "store" and "as_json", or "" for none; without any, both.
    """
    more = {name: kind for name, kind in _OPTIONS.items() if not options or name in options}
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in more.items()]
    kinds = get_type_hints(verb, include_extras=True)
    own = [each.replace(annotation=kinds[each.name]) for each in signature(verb).parameters.values()]
    return redeclared(
        verb, [*own, *added], lambda **given: verb(**{name: given[name] for name in given if name not in more})
    )


def redeclared(
    verb: Callable[..., None], parameters: Sequence[Parameter], run: Callable[..., None]
) -> Callable[..., None]:
    """Return a function with the name and the help of a verb, and with other parameters."""
    run = functools.wraps(verb)(run)
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return run


# Completion of verbs, options, their values and the types in the store, in a shell


VARIABLE = "_JOBS_SERVICE_COMPLETE"
"""The variable that the shell sets to request completions instead of running a verb."""

MOST: Final = 100
"""Most ids that are offered."""

ShellArgument = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="The shell.")]


def completion(shell: ShellArgument) -> None:
    """Print a script that completes words in a shell.

    For bash put this into ~/.bashrc: eval "$(jobs-service completion bash)"
    """
    from typer import completion

    output.line(
        completion.get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)  # type: ignore[attr-defined]
    )


def completion_asked() -> bool:
    """Return whether the shell requests completions."""
    return VARIABLE in os.environ


def answer_completion(command: Any) -> None:
    """Print the completions of the words in the environment.

    Raises:
        typer.Exit: always.
    """
    from typer import completion

    completion.completion_init()  # type: ignore[attr-defined]
    raise typer.Exit(completion.shell_complete(command, {}, PROGRAM, VARIABLE, os.environ[VARIABLE]))


def complete_types(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the types in the store with a prefix."""
    return _found(context, incomplete, lambda jobs: jobs.types())


def complete_ids(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return ids of the type's jobs with a prefix, MOST at most."""
    type = parsed(str(context.params.get("type")))

    async def look(jobs: JobsService) -> list[Any]:
        return [job.id for job in (await jobs.page(type, prefix=incomplete or None, limit=MOST)).jobs]

    return _found(context, incomplete, look)


def _found(
    context: typer.Context, incomplete: str, look: Callable[[JobsService], Awaitable[Iterable[Any]]]
) -> Iterable[str]:
    """Return names from the store, as texts with a prefix; nothing after an error: a shell shows none."""
    import asyncio

    from jobs_service import JobsService, Settings

    async def within(address: str) -> Iterable[Any]:
        # A person has pressed a key and waits.
        async with JobsService(address, settings=Settings(transaction_timeout=1), supervise=False) as jobs:
            return await look(jobs)

    with suppress(Exception):
        address = program.chosen_store(context)
        if program.missing_store(address) is None:
            names = map(shown, asyncio.run(within(address)))
            return [name for name in names if name.startswith(incomplete) and " " not in name]
    return []


# Types and ids of arguments

TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", help="The kind of job.", autocompletion=complete_types)]
OptionalType = Annotated[
    str | None, typer.Argument(metavar="TYPE", help="Only jobs of this type.", autocompletion=complete_types)
]
IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Names the job; its beginning, if no other begins so.", autocompletion=complete_ids
    ),
]
OptionalJob = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="Names one job; its beginning, if no other begins so.", autocompletion=complete_ids
    ),
]


# Names


def parse_type(text: str) -> Any:
    """Return the job type that an argument stands for.

    Raises:
        typer.BadParameter: it is not a type.
    """
    return _argument(text, "TYPE")


def parse_id(text: str) -> Any:
    """Return the job id that an argument stands for.

    Raises:
        typer.BadParameter: it is not an id.
    """
    return _argument(text, "ID")


def parse_priority(text: str) -> Any:
    """Return the priority that an option stands for, as `parsed_priority` does.

    Raises:
        typer.BadParameter: it is not a priority.
    """
    try:
        return parsed_priority(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--priority") from None


def _argument(text: str, name: str) -> Any:
    try:
        return parsed(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


# Durations, times and sizes


def duration(text: str, name: str, *others: str) -> float:
    """Return a duration in seconds.

    Args:
        text: a plain number of seconds, or numbers with the units d, h, m, s in that order: `1h30m`.
        name: the name of the argument, for the error.
        others: other texts that the argument accepts, for the error.

    Raises:
        typer.BadParameter: it is not a duration.
    """
    try:
        return durations.parsed(text, *others)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def positive_duration(text: str, name: str) -> float:
    """Return a duration of more than 0 in seconds; see `duration`."""
    seconds = duration(text, name)
    if seconds <= 0:
        raise typer.BadParameter("it must be more than 0", param_hint=name)
    return seconds


def moment(text: str) -> datetime:
    """Return an aware time.

    Raises:
        ValueError: it is not a time, or it has no offset from UTC; the message says which.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no ISO 8601 time; write 2030-01-31T09:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC; add Z, +01:00 or the like")
    return time


def run_at(after: str | None, at: str | None) -> datetime | float | None:
    """Return the time of `--in` or `--at`; None if neither is given.

    Raises:
        typer.BadParameter: both are given, or the given one is not a time.
    """
    if after is not None and at is not None:
        raise typer.BadParameter("give one of them", param_hint="--in and --at")
    if after is not None:
        return Sources().wall_time() + duration(after, "--in")
    if at is None:
        return None
    try:
        return moment(at)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from None


def parse_bytes(text: str) -> int:
    """Return a number of bytes: 500000000, 500M, 2G.

    Raises:
        typer.BadParameter: it is none.
    """
    if number := durations.bytes_of(text):
        return number
    raise typer.BadParameter(f"{text!r} is no number of bytes; write 500000000, 500M or 2G")


# JSON and files


MOST_BYTES: Final = 10_000_000
"""Most bytes of input for a job, which holds far less. Without a limit, input could fill the memory."""


def data(text: str) -> Any:
    """Return the JSON value of `--data`.

    Args:
        text: JSON, or `@` and a file's name, or `-` for standard input.

    Raises:
        typer.BadParameter: it is not JSON, or the file cannot be read.
    """
    try:
        return json_data.parsed(_source(text))
    except OSError as error:
        raise typer.BadParameter(f"{text[1:]}: {error.strerror or error}", param_hint="--data") from None
    except ValueError as error:
        hint = "" if text.startswith("@") or text == "-" else """; quote it for the shell: '"text"'"""
        raise typer.BadParameter(f"{error}{hint}", param_hint="--data") from None


def _source(text: str) -> str | bytes:
    if text == "-":
        return whole(sys.stdin.buffer)
    if text.startswith("@"):
        with open(text[1:], "rb") as file:
            return whole(file)
    return text


def whole(file: BinaryIO) -> bytes:
    """Return the content of a file.

    Raises:
        ValueError: it is larger than any job can be.
    """
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes, which no job takes")
    return content


def text_of(file: str, name: str) -> str:
    """Return the text in a file.

    Args:
        file: its name, or `-` for standard input.
        name: the name of the argument, for the error.

    Raises:
        typer.BadParameter: it cannot be read, it is no text, or it is larger than any job can be.
    """
    try:
        if file == "-":
            return whole(sys.stdin.buffer).decode()
        with open(file, "rb") as opened:
            return whole(opened).decode()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror or error}", param_hint=name) from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file}: it is no text in UTF-8", param_hint=name) from None
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint=name) from None
