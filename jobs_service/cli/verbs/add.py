"""`add` and `add-many`: add one job, or one per line of a file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import typer

from jobs_service import json_data
from jobs_service.cli import output, parsing, program
from jobs_service.cli.parsing import (
    AtOption,
    DataOption,
    InOption,
    NewTypeOption,
    PriorityOption,
    TypeArgument,
    parse_id,
    parse_priority,
    parse_type,
)
from jobs_service.cli.program import ensure_type
from jobs_service.cli.terminal import Bar
from jobs_service.names import parsed, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import Job, JobsService, JobTransaction, NewJob

FIELDS: Final = frozenset({"id", "data", "priority", "run_at"})
MOST_LINES: Final = 500
"""Most lines of a batch."""
CHUNK: Final = 1 << 18
"""Most bytes of a batch, beside those of its first line."""
LONGEST_LINE: Final = 1_000_000
"""Most bytes of a line: more than any job can hold. Without a limit, input could fill the memory."""

IfExists: TypeAlias = Literal["error", "resubmit"]

ResubmitOption = Annotated[
    bool, typer.Option("--resubmit", help="If the job exists: replace it while it waits, run it again once it has run.")
]

OptionalId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="Names the job within its type. Without it the job gets a random one, which is printed."
    ),
]

FileArgument = Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines; - or no FILE reads standard input.")]


# The verbs


def add(
    context: typer.Context,
    type: TypeArgument,
    id: OptionalId = None,
    data: DataOption = None,
    priority: PriorityOption = None,
    after: InOption = None,
    at: AtOption = None,
    resubmit: ResubmitOption = False,
    timeout: NewTypeOption = None,
) -> None:
    """Add a job; without an id, print the one that it gets.

    Its type must have an activity timeout: give it with --timeout, or once with jobs-service types set TYPE SECONDS.
    """
    if id is None and resubmit:
        raise typer.BadParameter("it is about a job that exists; name its ID", param_hint="--resubmit")
    names = parse_type(type), Sources().token(16).hex() if id is None else parse_id(id)
    value = None if data is None else parsing.data(data)
    rank = 0 if priority is None else parse_priority(priority)
    run_at = parsing.run_at(after, at)
    seconds = None if timeout is None else parsing.positive_duration(timeout, "--timeout")

    async def body(jobs: JobsService) -> Job:
        async def work(tx: JobTransaction) -> Job:
            if seconds is not None:
                await ensure_type(tx, names[0], seconds)
            return await tx.add(
                *names, value, priority=rank, run_at=run_at, if_exists="resubmit" if resubmit else "error"
            )

        return await output.without_in_changed(jobs, await jobs.transact(work))

    job = program.run(context, body, rehearsal=body)
    said = shown(job.id) if id is None else f"{output.name(*names)}: {output.status_sentence(job)}"
    output.tell(context, job.to_dict(), said)


def add_many(
    context: typer.Context,
    type: TypeArgument,
    file: FileArgument = "-",
    resubmit: ResubmitOption = False,
    timeout: NewTypeOption = None,
) -> None:
    """Add one job per JSON line.

    A line is {"id": ..., "data": ..., "priority": ..., "run_at": ...}; only id is required.
    run_at is an ISO time with an offset or seconds since the epoch; id and priority are written as on the command
    line. It stops at a bad line: the jobs of the lines before are added, and stay.
    """
    name = parse_type(type)
    seconds = None if timeout is None else parsing.positive_duration(timeout, "--timeout")
    with ExitStack() as opened:
        descriptor = _open(file, opened)
        if_exists: IfExists = "resubmit" if resubmit else "error"

        async def make_type(jobs: JobsService) -> None:
            if seconds is not None:
                await jobs.transact(lambda tx: ensure_type(tx, name, seconds))

        async def rehearsal(jobs: JobsService) -> None:
            await make_type(jobs)
            await jobs.get_type_timeout(name)

        async def body(jobs: JobsService) -> int:
            await make_type(jobs)
            return await add_lines(jobs, name, descriptor, if_exists)

        added = program.run(context, body, rehearsal=rehearsal)
    output.tell(
        context, {"type": shown(name), "added": added}, f"type {shown(name)}: {output.many(added, 'job')} added"
    )


def _open(file: str, opened: ExitStack) -> int:
    if file == "-":
        return sys.stdin.fileno()
    try:
        return opened.enter_context(open(file, "rb", buffering=0)).fileno()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None


# Lines


async def add_lines(jobs: JobsService, type: Any, descriptor: int, if_exists: IfExists) -> int:
    """Add a job for every line from a file descriptor; return the number of jobs.

    Raises:
        Refused: a line does not describe a job; the jobs of the lines before it are added.
        AnswerIsNo: a job was refused; the jobs of the lines before it are added.
        StoreError: the store failed; the message tells the number of added jobs.
    """
    import asyncio

    from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, StoreError

    added = 0

    def so_far() -> str:
        many = "1 job was" if added == 1 else f"{added} jobs were"
        return f"{many} added before, which stay" if added else "nothing was added"

    async def add(batch: list[_NumberedJob]) -> None:
        nonlocal added
        try:
            await jobs.add_many(type, [each.job for each in batch], if_exists=if_exists)
            added += len(batch)
        except StoreError as error:
            raise error.__class__(f"{error}; {so_far()}") from error
        except JobsError as error:
            if len(batch) > 1:  # one by one, until one is refused again
                for each in batch:
                    await add([each])
                return
            kind = program.Refused if isinstance(error, InvalidJob | JobTooLarge) else program.AnswerIsNo
            raise kind(f"line {batch[0].line}: {program.wording(error)}; {so_far()}") from error

    size, read = _size(descriptor), 0
    with Bar() as bar:
        try:
            async with aclosing(_batches(descriptor)) as batches:
                async for first, lines in batches:
                    batch, bad = _described(first, lines)
                    if batch:
                        await add(batch)
                    if bad is not None:
                        raise _Bad(bad)
                    read += sum(len(line) + 1 for line in lines)
                    bar.show(f"{output.many(added, 'job')} added", read, size)
        except _Bad as bad:
            raise program.Refused(f"{bad}; {so_far()}") from None
        except asyncio.CancelledError:
            program.say(f"interrupted; {so_far()}")
            raise
    return added


class _NumberedJob(NamedTuple):
    """A job and the number of its line."""

    line: int
    job: NewJob


class _Bad(Exception):
    """A line describes no job, or the lines cannot be read; the message says which and why."""


def _described(first: int, lines: list[bytes]) -> tuple[list[_NumberedJob], str | None]:
    """Return the jobs of the lines before a bad one, and its fault; None for no fault."""
    found: list[_NumberedJob] = []
    for number, line in enumerate(lines, first):
        try:
            if line.strip():
                found.append(_NumberedJob(number, new_job(line)))
        except ValueError as error:
            return found, f"line {number}: {program.wording(error)}"
    return found, None


async def _batches(descriptor: int) -> AsyncGenerator[tuple[int, list[bytes]], None]:
    """Yield the lines from a file descriptor as they come, with the number of the first of each batch.

    Raises:
        _Bad: a line is too long, or reading fails.
    """
    is_file = _size(descriptor) is not None
    number, rest = 1, b""
    while True:
        chunk = await _read(descriptor, is_file)
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:  # the last line may have no line feed
            lines = [rest]
        for start in range(0, len(lines), MOST_LINES):
            batch = lines[start : start + MOST_LINES]
            yield number, batch
            number += len(batch)
        if not chunk:
            return
        if len(rest) > LONGEST_LINE:
            raise _Bad(f"line {number} is longer than {LONGEST_LINE} bytes; one JSON object per line")


def _size(descriptor: int) -> int | None:
    """Return the size of a file in bytes; None of a pipe, whose size is unknown."""
    found = os.fstat(descriptor)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


async def _read(descriptor: int, is_file: bool) -> bytes:
    import anyio

    try:
        if not is_file:
            # The selector accepts pipes, terminals and sockets. Files that it refuses, such as /dev/null, never block.
            with suppress(PermissionError):
                await anyio.wait_readable(descriptor)
        return os.read(descriptor, CHUNK)
    except OSError as error:
        raise _Bad(f"reading the lines failed: {error.strerror}") from None


def new_job(text: bytes) -> NewJob:
    """Return the job that a JSON line describes.

    Raises:
        ValueError: the line does not describe a job; the message says why.
    """
    from jobs_service import NewJob

    fields = json_data.parsed(text)
    if not isinstance(fields, dict):
        raise ValueError('not a JSON object; write {"id": "...", "data": ...}')
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; allowed are id, data, priority, run_at")
    id = fields.get("id")
    if not isinstance(id, str):
        raise ValueError("id must be a string" if "id" in fields else "id is missing")
    priority = fields.get("priority", 0)
    return NewJob(
        parsed(id),
        fields.get("data"),
        parsed(priority) if isinstance(priority, str) else priority,
        _run_at(fields.get("run_at")),
    )


def _run_at(value: Any) -> datetime | float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, str):
        return parsing.moment(value)
    raise ValueError("run_at must be an ISO time, a number of seconds since the epoch, or null")
