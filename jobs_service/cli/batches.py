"""Adds the jobs of many JSON lines in batches, for `add-many`.

A batch fits into one transaction, so that exactly the jobs of the lines before a bad line are added.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from jobs_service import JobsService, NewJob
from jobs_service.cli import exits, values
from jobs_service.cli.line_reader import Line, Unreadable, lines
from jobs_service.cli.progress_bars import Advance, progress
from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, StoreError
from jobs_service.names import parsed

FIELDS = frozenset({"id", "data", "priority", "run_at"})
BATCH_JOBS = 500
BATCH_BYTES = 1_000_000

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
    with progress(os.fstat(descriptor)) as advance:
        adder = _BatchAdder(jobs, type, if_exists, advance)
        try:
            async with aclosing(lines(descriptor)) as source:
                async for line in source:
                    await adder.take(line)
            await adder.flush()
        except Unreadable as error:
            await adder.flush()
            raise exits.Refused(f"{error}; {adder.so_far()}") from None
        except asyncio.CancelledError:
            exits.say(f"interrupted; {adder.so_far()}")
            raise
    return adder.added


class _BatchAdder:
    """Adds jobs in batches, and finds the bad line of a refused batch."""

    def __init__(self, jobs: JobsService, type: Any, if_exists: IfExists, advance: Advance) -> None:
        self.added = 0
        self._jobs = jobs
        self._type = type
        self._if_exists = if_exists
        self._advance = advance
        self._batch: list[_NumberedJob] = []
        self._bytes = 0

    async def take(self, line: Line) -> None:
        """Take one line; add the batch when it is full, or when the next line may take long to arrive."""
        self._bytes += line.size
        if line.text.strip():
            try:
                job = new_job(line.text)
            except ValueError as error:
                await self.flush()
                raise exits.Refused(self._refusal(line.number, error)) from None
            self._batch.append(_NumberedJob(line.number, job))
        if line.pause or len(self._batch) >= BATCH_JOBS or self._bytes >= BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Add the batch."""
        batch, self._batch = self._batch, []
        size, self._bytes = self._bytes, 0
        try:
            if batch:
                await self._add(batch)
        except StoreError as error:
            raise type(error)(f"{error}; {self.so_far()}") from error
        except JobsError:
            await self._add_up_to_the_culprit(batch)
        self._advance(size, self.added)

    def so_far(self) -> str:
        """Return the number of added jobs as the last words of an error message."""
        return f"{_count(self.added)} added before, which stay" if self.added else "nothing was added"

    async def _add(self, batch: list[_NumberedJob]) -> None:
        await self._jobs.add_many(self._type, [numbered.job for numbered in batch], if_exists=self._if_exists)
        self.added += len(batch)

    async def _add_up_to_the_culprit(self, batch: list[_NumberedJob]) -> None:
        """Add the jobs of a refused batch one by one, until one is refused again."""
        for numbered in batch:
            try:
                await self._add([numbered])
            except StoreError as error:
                raise type(error)(f"{error}; {self.so_far()}") from error
            except (InvalidJob, JobTooLarge) as error:
                raise exits.Refused(self._refusal(numbered.line, error)) from error
            except JobsError as error:
                raise exits.AnswerIsNo(self._refusal(numbered.line, error)) from error

    def _refusal(self, line: int, why: Exception) -> str:
        return f"line {line}: {exits.wording(why)}; {self.so_far()}"


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


def _count(jobs: int) -> str:
    return "1 job was" if jobs == 1 else f"{jobs} jobs were"
