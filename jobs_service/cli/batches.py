"""Adds the jobs of many JSON lines in batches, for `add-many`, and finds the line that is to blame.

A batch fits into one transaction, so that exactly the jobs of the lines before a bad line are added. Lines are read
without blocking the event loop, so that Ctrl-C works.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import anyio

from jobs_service import JobsService, NewJob
from jobs_service.cli import exits, values
from jobs_service.cli.progress_bars import progress
from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, StoreError
from jobs_service.names import parsed

FIELDS: Final = frozenset({"id", "data", "priority", "run_at"})
MOST_LINES: Final = 500
"""Most lines of a batch."""
CHUNK: Final = 1 << 18
"""Most bytes of a batch, beside those of its first line."""
LONGEST_LINE: Final = 1_000_000
"""Most bytes of a line: more than any job can hold. Without a limit, input could fill the memory."""

IfExists: TypeAlias = Literal["error", "resubmit"]


class _NumberedJob(NamedTuple):
    """A job and the number of its line."""

    line: int
    job: NewJob


async def add_lines(jobs: JobsService, type: Any, descriptor: int, if_exists: IfExists) -> int:
    """Add a job for every line from a file descriptor; return the number of jobs.

    Raises:
        Refused: a line does not describe a job; the jobs of the lines before it are added.
        AnswerIsNo: a job was refused; the jobs of the lines before it are added.
        StoreError: the store failed; the message tells the number of added jobs.
    """
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
            kind = exits.Refused if isinstance(error, InvalidJob | JobTooLarge) else exits.AnswerIsNo
            raise kind(f"line {batch[0].line}: {exits.wording(error)}; {so_far()}") from error

    with progress(os.fstat(descriptor)) as advance:
        try:
            async with aclosing(_batches(descriptor)) as batches:
                async for first, lines in batches:
                    batch, bad = _described(first, lines)
                    if batch:
                        await add(batch)
                    if bad is not None:
                        raise _Bad(bad)
                    advance(sum(len(line) + 1 for line in lines), added)
        except _Bad as bad:
            raise exits.Refused(f"{bad}; {so_far()}") from None
        except asyncio.CancelledError:
            exits.say(f"interrupted; {so_far()}")
            raise
    return added


class _Bad(Exception):
    """A line describes no job, or the lines cannot be read; the message says which and why."""


def _described(first: int, lines: list[bytes]) -> tuple[list[_NumberedJob], str | None]:
    """Return the jobs of the lines before a bad one, and what is bad, None for nothing."""
    found: list[_NumberedJob] = []
    for number, line in enumerate(lines, first):
        try:
            if line.strip():
                found.append(_NumberedJob(number, new_job(line)))
        except ValueError as error:
            return found, f"line {number}: {exits.wording(error)}"
    return found, None


async def _batches(descriptor: int) -> AsyncGenerator[tuple[int, list[bytes]], None]:
    """Yield the lines from a file descriptor as they come, with the number of the first of each batch.

    Raises:
        _Bad: a line is too long, or reading fails.
    """
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
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


async def _read(descriptor: int, is_file: bool) -> bytes:
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
    fields = values.strict_json(text)
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
        return values.moment(value)
    raise ValueError("run_at must be an ISO time, a number of seconds since the epoch, or null")
