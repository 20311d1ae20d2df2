"""`watch`: prints the events of one job, or of all jobs of a type, as they happen."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TextIO

import typer

from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import GAP, LEAST_CUT, cells, cut, width
from jobs_service.cli.parsing import DURATION_HELP, OptionalJob, TypeArgument, parse_type
from jobs_service.cli.selecting import on_job
from jobs_service.cli.terminal import Bar
from jobs_service.names import shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobId, JobsService, JobType

MOST_JOBS: Final = 100_000
"""With more jobs, the snapshots would take too much memory and the lists too much time."""

LEAST_PAUSE: Final = 0.25
"""Least seconds between two lists."""

PAUSE_PER_LIST: Final = 9.0
"""Ratio of a pause to the list before it: so lists take a tenth of a core."""

MOST_PAUSE: Final = 30.0
"""Most seconds between two lists; a list also takes very long if the reader of the output is slow."""

TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="S", help=f"Watch no longer than this: {DURATION_HELP}.")
]
ExitStatusOption = Annotated[
    bool, typer.Option("--exit-status", help="Exit with 1 when the job has failed or was canceled.")
]


# The verb


def watch(
    context: typer.Context,
    type: TypeArgument,
    id: OptionalJob = None,
    timeout: TimeoutOption = None,
    exit_status: ExitStatusOption = False,
) -> None:
    """Print events live, of a job or of a whole type.

    For one job: its present state, then each change until it ends. For a type: the running jobs, then each change of a
    job, until Ctrl-C. Each event is printed with the job's state, its progress, result or error, and its data.

    The exit code is 0 when the job has finished, whatever its outcome unless --exit-status is given, and 1 when it is
    removed before. To watch a type, all its jobs are listed again and again, which takes at most a tenth of a core; a
    type of more than 100,000 jobs is refused. Changes between two lists are printed as one event.
    """
    job_type = parse_type(type)
    seconds = None if timeout is None else parsing.duration(timeout, "--timeout")
    if id is None:
        if exit_status:
            raise typer.BadParameter("it is about one job; name its ID", param_hint="--exit-status")
        _watch_type(context, job_type, seconds)
        return

    async def body(jobs: JobsService, type: JobType, id: JobId) -> JobEvent:
        import asyncio

        try:
            async with asyncio.timeout(seconds):
                return await followed(
                    jobs, type, id, _show_json if output.wants_json(context) else _Shown(), sys.stdout
                )
        except TimeoutError:
            raise program.AnswerIsNo(f"{output.name(type, id)} did not finish within {seconds:g} s") from None

    last = on_job(context, (type, id), body, supervise=True)
    called = output.name(last.type, last.id)
    if last.state == "removed":
        raise program.AnswerIsNo(f"{called} was removed before it finished")
    if exit_status and last.outcome != "succeeded":
        why = "" if last.error is None else f": {output.error_text(last.error)}"
        raise program.AnswerIsNo(f"{called} {output.status_text(last)}{why}")


async def followed(
    jobs: JobsService, type: JobType, id: JobId, show: Callable[[JobEvent], None], on: TextIO
) -> JobEvent:
    """Follow a job to its end, with a live bar on a terminal; return the last event.

    Args:
        jobs: the service, with its supervisor tree.
        type, id: the job.
        show: called with each event, without secret fields.
        on: the terminal of the bar.
    """
    async with program.while_read(), jobs.subscribe(type, id) as events:
        with Bar(on) as bar:
            async for event in events:
                event = await output.without(jobs, event)
                bar.show_job(event)
                show(event)
    return event


def _watch_type(context: typer.Context, type: Any, seconds: float | None) -> None:
    show = _show_json if output.wants_json(context) else _show_of_many

    async def body(jobs: JobsService) -> None:
        import asyncio

        await program.require_type(jobs, type)
        with suppress(TimeoutError):
            async with program.while_read(), asyncio.timeout(seconds):
                async for job in changes(jobs, type):
                    output.as_far_as_readable(show, await output.without(jobs, job))

    try:
        program.run(context, body)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _show_json(event: Job | JobEvent) -> None:
    output.json_line(event.to_dict())


class _Shown:
    """Shows the events of one job as lines; on a terminal, reports of progress are left to the bar."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def __call__(self, event: JobEvent) -> None:
        """Show the next event."""
        now = (event.state, event.attempts, event.data)
        if now != self._last or event.progress is None or not sys.stdout.isatty():
            _show_line(event, "")
        self._last = now


def _show_of_many(event: Job | JobEvent) -> None:
    _show_line(event, shown(event.id) + GAP)


def _show_line(event: Job | JobEvent, name: str) -> None:
    status = output.status_text(event)
    time = output.time_text(datetime.fromtimestamp(Sources().wall_time(), UTC))
    head = f"{time}{GAP}{status:<9}{GAP}{name}"
    when = (
        f"not before {output.time_text(event.run_at)}" if status in ("scheduled", "retrying") and event.run_at else ""
    )
    detail = GAP.join(filter(None, (when, output.detail_text(event, event.attempts))))
    detail = cut(detail, max(width() - cells(head), LEAST_CUT)) if sys.stdout.isatty() else detail
    output.styled_line((head + detail).rstrip(), status)


# Changes of a type's jobs


class _JobSnapshot(NamedTuple):
    """The fields of a job that reveal a change."""

    seq: bytes | None
    cancel: bool
    unfinished: bool


async def changes(jobs: JobsService, type: Any) -> AsyncIterator[Job | JobEvent]:
    """Yield the running jobs of a type; then, without end, changed jobs and removed unfinished jobs.

    Raises:
        AnswerIsNo: there are too many jobs.
    """
    import asyncio

    from jobs_service import JobEvent, JobState

    clock = asyncio.get_running_loop().time
    before: dict[Any, _JobSnapshot] | None = None
    while True:
        began = clock()
        present: dict[Any, _JobSnapshot] = {}
        async for job in jobs.list(type):
            snapshot = _JobSnapshot(job.seq, job.cancel, job.state is not JobState.FINISHED)
            present[job.id] = snapshot
            if len(present) > MOST_JOBS:
                raise program.AnswerIsNo(
                    f"type {shown(type)} has more than {MOST_JOBS} jobs: "
                    f"watch one of them, or see {program.PROGRAM} top"
                )
            if job.state is JobState.RUNNING if before is None else before.get(job.id) != snapshot:
                yield job
        for id in (before or {}).keys() - present.keys():
            if before is not None and before[id].unfinished:
                yield JobEvent(type, id, JobState.REMOVED, data=None, outcome=None, seq=None)
        before = present
        await asyncio.sleep(min(max(LEAST_PAUSE, (clock() - began) * PAUSE_PER_LIST), MOST_PAUSE))
