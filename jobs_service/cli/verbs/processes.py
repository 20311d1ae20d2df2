"""`processes` and `workers`: show the processes that use the store, and the jobs that their workers run.

The first also quiets, resumes or stops a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import __version__, names
from jobs_service.cli import output, program
from jobs_service.cli.output import Column
from jobs_service.cli.parsing import OptionalType, parse_type, verb, with_options
from jobs_service.cli.program import require_type
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from jobs_service import Job, JobsService, ProcessInfo, Progress

_MOST_NAMED = 10

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Of the process, as `jobs-service processes` shows it.")]

AT_ONCE = 100
"""Jobs read at the same time."""


# Processes


def _handlers(info: ProcessInfo) -> str:
    names = [shown(each.type) for each in info.handlers]
    more = len(names) + info.unnamed - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")


PROCESS_COLUMNS = (
    Column("id", lambda info: printable(info.id), whole=True),
    Column("state", lambda info: info.state.value),
    Column("worker", lambda info: printable(info.worker)),
    Column("role", lambda info: printable(info.role)),
    Column("version", lambda info: printable(info.version), nothing=__version__),
    Column("up", lambda info: output.since_text(info.started), right=True),
    Column("heard", lambda info: output.since_text(info.heard), right=True),
    Column("taken", lambda info: f"{info.taken}/{info.slots}", right=True),
    Column("handlers", _handlers, cut=True),
)


def processes_app() -> typer.Typer:
    """Return the verb with its sub-verbs `quiet`, `resume` and `stop`."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(invoke_without_command=True)(with_options(processes))
    verb(app, "quiet", quiet)
    verb(app, "resume", resume)
    verb(app, "stop", stop)
    return app


def processes(context: typer.Context) -> None:
    """Show the processes that run handlers, and daemons.

    Of each are shown its state, its version if some process has another one than this command, for how long it has been
    up, how long ago its last heartbeat was (by its own clock; -o json has the times), how many of its slots were taken
    then, and what it runs. Programs that only add jobs are not listed. A process that was killed is shown for a day: as
    dead at once where all processes are on one machine, else as silent, when five of its heartbeats have not come.
    """
    if context.invoked_subcommand is not None:
        return

    async def body(jobs: JobsService) -> list[ProcessInfo]:
        return await jobs.processes()

    found = program.run(context, body)
    none = "no process runs handlers; jobs-service serve MODULE:ATTR does"
    output.rows(context, PROCESS_COLUMNS, found, lambda info: info.to_dict(), none)


def quiet(context: typer.Context, id: IdArgument) -> None:
    """Have a process take no more jobs; those that run go on, and it stays."""
    _ask(context, id, "quiet", "takes no more jobs; those that run go on")


def resume(context: typer.Context, id: IdArgument) -> None:
    """Have a quiet process take jobs again."""
    _ask(context, id, "resume", "takes jobs again")


def stop(context: typer.Context, id: IdArgument) -> None:
    """Have a process end, as on SIGTERM: handlers get their grace; jobs that do not end in it are given back."""
    _ask(context, id, "stop", "ends; its running jobs get their grace")


def _ask(context: typer.Context, id: str, action: str, what: str) -> None:
    from jobs_service.model import ProcessAction

    async def body(jobs: JobsService) -> ProcessInfo:
        return await jobs.ask_process(id, ProcessAction(action), program.user())

    before = program.run(context, body)
    if output.wants_json(context):
        output.json_line({"id": before.id, "asked": action, "before": before.to_dict()})
        return
    name = f"process {before.id} ({printable(before.worker)})"
    if before.state == "silent":
        output.line(f"{name} was not heard of since {output.time_text(before.heard)}; it is told when it comes back")
    else:
        output.line(f"{name} {what}")


# Workers


class _HeldJob(NamedTuple):
    job: Job
    worker: str | None
    since: float | None
    progress: Progress | None

    @classmethod
    def of(cls, job: Job) -> _HeldJob:
        started = next((event for event in job.history if event.kind == "started"), None)
        if started is None:
            return cls(job, None, None, job.progress)
        return cls(job, started.detail, started.at, job.progress)


WORKER_COLUMNS = (
    Column("worker", lambda row: printable(row.worker or "-")),
    Column("type", lambda row: shown(row.job.type), whole=True),
    Column("id", lambda row: shown(row.job.id), whole=True),
    Column("since", lambda row: output.time_text(row.since), whole=True),
    Column("attempt", lambda row: str(row.job.attempts), right=True, nothing="1"),
    Column("canceled", lambda row: "yes" if row.job.cancel else "no", nothing="no"),
    Column("progress", lambda row: "" if row.progress is None else output.progress_text(row.progress), cut=True),
)


def workers(context: typer.Context, type: OptionalType = None) -> None:
    """Show which worker runs which job.

    A worker's name is its host and process id, from the event "started" in the job's history. A worker that has died is
    shown until its job is taken back.
    """
    only = None if type is None else parse_type(type)
    rows = program.run(context, lambda jobs: _held(jobs, only))
    output.rows(context, WORKER_COLUMNS, rows, _held_form, "no job is running")


async def _held(jobs: JobsService, only: Any) -> list[_HeldJob]:
    """Return a row for each running job."""
    import asyncio

    if only is not None:
        await require_type(jobs, only)
    rows: list[_HeldJob] = []
    for type in [only] if only is not None else await jobs.types():
        # The running jobs of a type have an index of their own, so not all jobs are read.
        ids = await jobs.active_ids(type)
        for at in range(0, len(ids), AT_ONCE):
            found = await asyncio.gather(*(_running(jobs, type, id) for id in ids[at : at + AT_ONCE]))
            held = await output.without_in_all(jobs, [job for job in found if job is not None])
            rows += [output.as_far_as_readable(_HeldJob.of, job) for job in held]
    return sorted(rows, key=lambda row: (row.worker or "", row.since or 0.0))


async def _running(jobs: JobsService, type: Any, id: Any) -> Job | None:
    from jobs_service import JobNotFound, JobState, RecordDamaged

    try:
        job = await jobs.get(type, id)
    except (JobNotFound, RecordDamaged):  # it was removed meanwhile, or it is unknown whether it runs
        return None
    return job if job.state is JobState.RUNNING else None


def _held_form(row: _HeldJob) -> dict[str, Any]:
    from jobs_service.json_types import plain, time

    return {
        "worker": row.worker,
        "type": names.name(row.job.type),
        "id": names.name(row.job.id),
        "since": time(row.since),
        "attempt": row.job.attempts,
        "cancel": row.job.cancel,
        "progress": None if row.progress is None else plain(row.progress),
    }
