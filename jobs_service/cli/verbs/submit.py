"""`submit`: adds a job that runs a program, and waits for its end on request, as `replicate` does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import output, parsing, program
from jobs_service.cli.parsing import DURATION_HELP, AtOption, InOption, PriorityOption, parse_id, parse_priority
from jobs_service.names import shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService

PATIENCE = 3.0
"""Seconds until a waiting verb gives a hint why its ready job has not begun."""

TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="S", help=f"With --wait: wait no longer than this: {DURATION_HELP}.")
]

CommandArgument = Annotated[list[str], typer.Argument(metavar="-- CMD ARGS...", help="A program and its arguments.")]
IdOption = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="The job's id; without it the job gets a random one.")
]
DirectoryOption = Annotated[
    str | None, typer.Option("--cwd", metavar="DIR", help="The directory to run in; without it, the daemon's.")
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="K=V", help="Set a variable, in addition to those of the daemon.")
]
InputOption = Annotated[
    str | None, typer.Option("--stdin", metavar="FILE|-", help="Its standard input: text, stored with the job.")
]
TimeLimitOption = Annotated[
    str | None, typer.Option("--time-limit", metavar="S", help=f"End it after this time: {DURATION_HELP}.")
]


def wait_option(help: str) -> typer.models.OptionInfo:
    """Return `--wait`, for the annotation of a parameter.

    Args:
        help: the action at the job's end, in words.
    """
    option: typer.models.OptionInfo = typer.Option("--wait", help=f"Wait for its end{help}")
    return option


WaitOption = Annotated[bool, wait_option("; print what it printed, and exit with its exit code.")]


# The verb


def submit(
    context: typer.Context,
    command: CommandArgument,
    id: IdOption = None,
    directory: DirectoryOption = None,
    env: EnvOption = None,
    stdin: InputOption = None,
    time_limit: TimeLimitOption = None,
    priority: PriorityOption = None,
    after: InOption = None,
    at: AtOption = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Add a job that runs a program, and print its id.

    A daemon that was started with `serve --commands` runs it, without a shell. With --wait the exit code is the
    program's, 128 + N if signal N ended it, and 1 if it did not run to its end.
    """
    from jobs_service import HandlerOptions, Job
    from jobs_service.runner.commands import Command, command_handler

    name = None if id is None else parse_id(id)
    rank = 0 if priority is None else parse_priority(priority)
    run_at = parsing.run_at(after, at)
    seconds = wait_limit(wait, timeout)
    described = Command(
        tuple(command),
        # The daemon may run in another directory.
        cwd=None if directory is None else os.path.abspath(directory),
        env=dict(map(_variable, env or [])),
        time_limit=None if time_limit is None else parsing.duration(time_limit, "--time-limit"),
        stdin=None if stdin is None else parsing.text_of(stdin, "--stdin"),
    )

    async def enqueue(jobs: JobsService) -> Job:
        handler, data = command_handler(HandlerOptions()), described.to_data()
        return await jobs.enqueue(handler, data, id=name, priority=rank, run_at=run_at)

    async def body(jobs: JobsService) -> Job | tuple[JobEvent, int]:
        from jobs_service import JobExists

        try:
            job = await enqueue(jobs)
        except JobExists as error:
            raise program.AnswerIsNo(
                f"{output.name(error.type, error.id)} exists already; give another --id, or have that one run again: "
                f"{program.PROGRAM} resubmit {shown(error.type)} {shown(error.id)}"
            ) from None
        return await _end_of(jobs, job, seconds) if wait else await output.without_in_changed(jobs, job)

    job = program.run(context, body, rehearsal=enqueue, supervise=wait)
    if isinstance(job, Job):
        output.tell(context, job.to_dict(), shown(job.id))
        return
    event, code = job
    if output.wants_json(context):
        output.json_line(event.to_dict())
    else:
        _print_output(event)
    raise typer.Exit(code)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r}; write NAME=VALUE", param_hint="--env")
    return name, value


async def _end_of(jobs: JobsService, job: Job, seconds: float | None) -> tuple[JobEvent, int]:
    """Return a job's end without its secret fields, and the exit code of its program."""
    async with waiting_for(jobs, job, seconds, "serve --commands"):
        event = await jobs.wait(job.type, job.id, "finished", "removed")
    if event.state == "removed":
        raise program.AnswerIsNo(f"{output.name(job.type, job.id)} was removed before it finished")
    return await output.without_in_changed(jobs, event), _exit_code(event)


def _print_output(event: JobEvent) -> None:
    """Print the output of the program, and a line about a program that did not run to its end."""
    result = _result(event)
    if result.get("cut"):
        program.say("the beginning of what it printed was not kept")
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        stream.write(str(result.get(name, "")))
        stream.flush()
    if event.outcome != "succeeded" and result.get("exit_code") is None:
        why = "" if event.error is None else f": {event.error.message}"
        program.say(f"{output.name(event.type, event.id)} {output.status_text(event)}{why}")


def _exit_code(event: JobEvent) -> int:
    result = _result(event)
    code = result.get("exit_code")
    if isinstance(code, int):
        return code
    number = _signal_number(result.get("signal"))
    if number is not None:
        return 128 + number
    return program.DONE if event.outcome == "succeeded" else program.NO


def _signal_number(name: Any) -> int | None:
    if not isinstance(name, str):
        return None
    if name in signal.Signals.__members__:
        return signal.Signals[name]
    # A signal without a name is written as "signal 42".
    number = name.removeprefix("signal ")
    return int(number) if number.isdecimal() else None


def _result(event: JobEvent) -> dict[str, Any]:
    """Return the result of the program; empty if it did not end, or if another kind of handler has ended the job."""
    return event.result if isinstance(event.result, dict) else {}


# Waiting for a job


def wait_limit(wait: bool, timeout: str | None) -> float | None:
    """Return the seconds of `--timeout`; None without it.

    Raises:
        typer.BadParameter: it is no duration, or `--wait` is missing.
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("it limits --wait; give both", param_hint="--timeout")
    return None if timeout is None else parsing.duration(timeout, "--timeout")


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
        raise program.AnswerIsNo(f"{called} did not finish within {seconds:g} s{advice}") from None
    except asyncio.CancelledError:
        program.say(f"interrupted; {called} is still there")
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

    await asyncio.sleep(PATIENCE)
    found = await jobs.get(job.type, job.id)
    while output.status_text(found) in ("scheduled", "retrying") and found.run_at is not None:
        await asyncio.sleep(max(found.run_at.timestamp() - Sources().wall_time(), 0.0) + PATIENCE)
        found = await jobs.get(job.type, job.id)
    if output.status_text(found) == "ready" and not found.attempts:
        program.say(f"{output.name(job.type, job.id)} is ready{await _why_it_waits(jobs, job, daemon)}")


async def _why_it_waits(jobs: JobsService, job: Job, daemon: str) -> str:
    if await jobs.paused(job.type):
        return f"; type {shown(job.type)} is paused: `jobs-service resume {shown(job.type)}`"
    return f"; a daemon runs it that was started with `{daemon}`"


async def _advice(jobs: JobsService, job: Job, daemon: str) -> str:
    """Return advice about a job that did not end in time, as the last words of an error."""
    from jobs_service.errors import JobNotFound

    try:
        found = await output.without(jobs, await jobs.get(job.type, job.id))
    except JobNotFound:
        return ""
    status = output.status_text(found)
    if found.error is not None and status != "running":
        return f"; it is tried again, and failed last by {output.error_text(found.error)}"
    return f"; it is still ready{await _why_it_waits(jobs, job, daemon)}" if status == "ready" else ""
