"""`submit`: adds a job that runs a program, and waits for its end on request."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs_service.cli import exits, output, secrets, session, values
from jobs_service.cli.names import parse_id, parse_priority
from jobs_service.cli.options import (
    DURATION_HELP,
    AtOption,
    InOption,
    JsonOption,
    PriorityOption,
    StoreOption,
)
from jobs_service.cli.waiting import TimeoutOption, wait_limit, wait_option, waiting_for
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService

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
WaitOption = Annotated[bool, wait_option("; print what it printed, and exit with its exit code.")]


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
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job that runs a program, and print its id.

    A daemon that was started with `serve --commands` runs it, without a shell. With --wait the exit code is the
    program's, 128 + N if signal N ended it, and 1 if it did not run to its end.
    """
    from jobs_service import Job
    from jobs_service.runner.commands import Command

    name = None if id is None else parse_id(id)
    rank = 0 if priority is None else parse_priority(priority)
    run_at = values.run_at(after, at)
    seconds = wait_limit(wait, timeout)
    described = Command(
        tuple(command),
        # The daemon may run in another directory.
        cwd=None if directory is None else os.path.abspath(directory),
        env=dict(map(_variable, env or [])),
        time_limit=None if time_limit is None else values.duration(time_limit, "--time-limit"),
        stdin=None if stdin is None else values.text_of(stdin, "--stdin"),
    )

    async def enqueue(jobs: JobsService) -> Job:
        return await _enqueue(jobs, described.to_data(), id=name, priority=rank, run_at=run_at)

    async def body(jobs: JobsService) -> Job | tuple[JobEvent, int]:
        from jobs_service import JobExists

        try:
            job = await enqueue(jobs)
        except JobExists as error:
            raise exits.AnswerIsNo(
                f"{output.name(error.type, error.id)} exists already; give another --id, or have that one run again: "
                f"{exits.PROGRAM} resubmit {shown(error.type)} {shown(error.id)}"
            ) from None
        return await _end_of(jobs, job, seconds) if wait else await secrets.without_in_changed(jobs, job)

    job = session.run(context, store, body, rehearsal=enqueue, supervise=wait)
    if isinstance(job, Job):
        if as_json:
            output.json_line(job.to_dict())
        else:
            output.line(shown(job.id))
        return
    event, code = job
    if as_json:
        output.json_line(event.to_dict())
    else:
        _print_output(event)
    raise typer.Exit(code)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r}; write NAME=VALUE", param_hint="--env")
    return name, value


async def _enqueue(jobs: JobsService, data: dict[str, Any], **options: Any) -> Job:
    from jobs_service import HandlerOptions
    from jobs_service.runner.commands import command_handler

    return await jobs.enqueue(command_handler(HandlerOptions()), data, **options)


async def _end_of(jobs: JobsService, job: Job, seconds: float | None) -> tuple[JobEvent, int]:
    """Return a job's end without its secret fields, and the exit code of its program."""
    async with waiting_for(jobs, job, seconds, "serve --commands"):
        event = await jobs.wait(job.type, job.id, "finished", "removed")
    if event.state == "removed":
        raise exits.AnswerIsNo(f"{output.name(job.type, job.id)} was removed before it finished")
    return await secrets.without_in_changed(jobs, event), _exit_code(event)


def _print_output(event: JobEvent) -> None:
    """Print the output of the program, and a line about a program that did not run to its end."""
    result = _result(event)
    if result.get("cut"):
        exits.say("the beginning of what it printed was not kept")
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        stream.write(str(result.get(name, "")))
        stream.flush()
    if event.outcome != "succeeded" and result.get("exit_code") is None:
        why = "" if event.error is None else f": {event.error.message}"
        exits.say(f"{output.name(event.type, event.id)} {output.status_text(event)}{why}")


def _exit_code(event: JobEvent) -> int:
    result = _result(event)
    code = result.get("exit_code")
    if isinstance(code, int):
        return code
    number = _signal_number(result.get("signal"))
    if number is not None:
        return 128 + number
    return exits.DONE if event.outcome == "succeeded" else exits.NO


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
