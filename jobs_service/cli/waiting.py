"""The options `--wait` and `--timeout` of verbs that add a job and can wait for its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from jobs_service.cli import exits, output, secrets, values
from jobs_service.cli.options import DURATION_HELP
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobsService

PATIENCE = 3.0
"""Seconds until a waiting verb gives a hint why its ready job has not begun."""

TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="S", help=f"With --wait: wait no longer than this: {DURATION_HELP}.")
]


def wait_option(help: str) -> typer.models.OptionInfo:
    """Return `--wait`, for the annotation of a parameter.

    Args:
        help: the action at the job's end, in words.
    """
    option: typer.models.OptionInfo = typer.Option("--wait", help=f"Wait for its end{help}")
    return option


def wait_limit(wait: bool, timeout: str | None) -> float | None:
    """Return the seconds of `--timeout`; None without it.

    Raises:
        typer.BadParameter: it is no duration, or `--wait` is missing.
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("it limits --wait; give both", param_hint="--timeout")
    return None if timeout is None else values.duration(timeout, "--timeout")


@asynccontextmanager
async def waiting_for(jobs: JobsService, job: Job, seconds: float | None, daemon: str) -> AsyncIterator[None]:
    """Let the block wait for the end of a job, and report the job's state if the block is stopped.

    Args:
        jobs: the service.
        job: the job.
        seconds: the time limit; None for none.
        daemon: the arguments of a daemon that runs such jobs: "serve --commands".

    Raises:
        AnswerIsNo: the time is over.
    """
    import asyncio

    called = output.name(job.type, job.id)
    try:
        async with asyncio.timeout(seconds), _hinting(jobs, job, daemon):
            yield
    except TimeoutError:
        advice = await _advice(jobs, job, daemon)
        raise exits.AnswerIsNo(f"{called} did not finish within {seconds:g} s{advice}") from None
    except asyncio.CancelledError:
        exits.say(f"interrupted; {called} is still there")
        raise


@asynccontextmanager
async def _hinting(jobs: JobsService, job: Job, daemon: str) -> AsyncIterator[None]:
    """Run the block, and meanwhile give a hint if no worker begins the job for a while."""
    import asyncio

    hint = asyncio.create_task(_hint(jobs, job, daemon))
    try:
        yield
    finally:
        hint.cancel()
        await asyncio.gather(hint, return_exceptions=True)


async def _hint(jobs: JobsService, job: Job, daemon: str) -> None:
    """Say why a ready job has not begun, PATIENCE seconds after its due time."""
    import asyncio

    from jobs_service.sources import Sources

    await asyncio.sleep(PATIENCE)
    found = await jobs.get(job.type, job.id)
    while output.status_text(found) in ("scheduled", "retrying") and found.run_at is not None:
        await asyncio.sleep(max(found.run_at.timestamp() - Sources().wall_time(), 0.0) + PATIENCE)
        found = await jobs.get(job.type, job.id)
    if output.status_text(found) == "ready" and not found.attempts:
        exits.say(f"{output.name(job.type, job.id)} is ready{await _why_it_waits(jobs, job, daemon)}")


async def _why_it_waits(jobs: JobsService, job: Job, daemon: str) -> str:
    if await jobs.paused(job.type):
        return f"; type {shown(job.type)} is paused: `jobs-service resume {shown(job.type)}`"
    return f"; a daemon runs it that was started with `{daemon}`"


async def _advice(jobs: JobsService, job: Job, daemon: str) -> str:
    """Return advice about a job that did not end in time, as the last words of an error."""
    from jobs_service.errors import JobNotFound

    try:
        found = await secrets.without(jobs, await jobs.get(job.type, job.id))
    except JobNotFound:
        return ""
    status = output.status_text(found)
    if found.error is not None and status != "running":
        return f"; it is tried again, and failed last by {output.error_text(found.error)}"
    return f"; it is still ready{await _why_it_waits(jobs, job, daemon)}" if status == "ready" else ""
