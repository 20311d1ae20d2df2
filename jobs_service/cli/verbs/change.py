"""`retry`, `cancel` and `remove`: change one job, or all that match a filter; `run` and `resubmit`: have one run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program, terminal
from jobs_service.cli.parsing import (
    DURATION_HELP,
    AtOption,
    DataOption,
    IdArgument,
    InOption,
    OptionalJob,
    PriorityOption,
    TypeArgument,
    parse_priority,
    parse_type,
)
from jobs_service.cli.selecting import on_job, selects
from jobs_service.cli.verbs.watch import followed
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobId, JobsService, JobType
    from jobs_service.service.bulk_actions import Asked
    from jobs_service.service.selection import Filter

One: TypeAlias = "Callable[[JobsService, JobType, JobId], Coroutine[Any, Any, tuple[dict[str, Any], str]]]"
"""Changes one job; returns its JSON, and what became of it in words."""

AllOption = Annotated[bool, typer.Option("--all", help="All jobs of the type: needed where no filter is given.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say how many jobs match.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Remove it even while it runs; its worker is refused.")]
WaitOption = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="S",
        help=f"If it runs, wait so long for its worker to finish, then remove it: {DURATION_HELP}.",
    ),
]
_DONE: Final = {"resubmit": "retried", "cancel": "canceled", "remove": "removed"}


# One job, or all that match


def _verb(action: str, one: One, help: str) -> Callable[..., None]:
    @selects
    def verb(
        context: typer.Context,
        type: TypeArgument,
        id: OptionalJob = None,
        *,
        wanted: Filter,
        every: AllOption = False,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
    ) -> None:
        _change(context, action, type, id, wanted, one, every=every, dry_run=dry_run, yes=yes)

    verb.__doc__ = help
    return verb


def _change(
    context: typer.Context,
    action: str,
    type: str,
    id: str | None,
    wanted: Filter,
    one: One,
    *,
    every: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Do an action with one job, or with all that match a filter."""
    from jobs_service.service.bulk_actions import ACTIONS

    if id is None:
        if not wanted and not every:
            raise typer.BadParameter("name an ID, or a filter such as --state; --all is every job of the type")
        if wanted and every:
            raise typer.BadParameter("it is every job of the type; leave the filter out", param_hint="--all")
        _change_all(context, action, parse_type(type), wanted, dry_run=dry_run, yes=yes)
        return
    if wanted or every or dry_run:
        raise typer.BadParameter("the ID is that of one job; leave the filter, --all and --dry-run out")
    form, said = on_job(context, (type, id), one, changing=ACTIONS[action], yes=yes)
    output.tell(context, form, said)


async def _retry(jobs: JobsService, type: JobType, id: JobId) -> tuple[dict[str, Any], str]:
    from jobs_service.service import bulk_actions

    retried = await bulk_actions.retry(jobs, type, id)
    job = await output.without_in_changed(jobs, retried or await jobs.get(type, id))
    became = output.status_sentence(job) if retried else f"{output.status_text(job)}, and stays so"
    return job.to_dict(), f"{output.name(type, id)}: {became}"


async def _cancel(jobs: JobsService, type: JobType, id: JobId) -> tuple[dict[str, Any], str]:
    from jobs_service.service import bulk_actions

    removal = await bulk_actions.cancel(jobs, type, id)
    return _removal(type, id, "unchanged" if removal is None else removal.value)


def _remove(force: bool, seconds: float | None) -> One:
    async def one(jobs: JobsService, type: JobType, id: JobId) -> tuple[dict[str, Any], str]:
        if seconds is None:
            return _removal(type, id, (await jobs.remove(type, id, force=force)).value)
        try:
            await jobs.stop_and_remove(type, id, timeout=seconds)
        except TimeoutError:
            why = f"still runs after {seconds:g} s; it is canceled, and stays until it is finished"
            raise program.AnswerIsNo(f"{output.name(type, id)} {why}") from None
        return _removal(type, id, "removed")

    return one


def _removal(type: JobType, id: JobId, removal: str) -> tuple[dict[str, Any], str]:
    words = {"canceled": "running; its worker is asked to finish it", "unchanged": "it has ended, and stays as it is"}
    form = {"type": names.name(type), "id": names.name(id), "removal": removal}
    return form, f"{output.name(type, id)}: {words.get(removal, removal)}"


retry = _verb(
    "resubmit",
    _retry,
    """Run jobs again: one by its ID, or all that match a filter.

    Ended jobs run again; those that wait for another attempt after a crash run at once; all others stay as they are.
    A filter without a state is about failed jobs. To change a job's data or time, see resubmit.
    """,
)
cancel = _verb(
    "cancel",
    _cancel,
    """Cancel jobs: one by its ID, or all that match a filter.

    Those that wait are removed, the workers of running ones are asked to finish them, ended ones stay with their
    results.
    """,
)


@selects
def remove(
    context: typer.Context,
    type: TypeArgument,
    id: OptionalJob = None,
    *,
    force: ForceOption = False,
    wait: WaitOption = None,
    wanted: Filter,
    every: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove jobs: one by its ID, or all that match a filter.

    The worker of a running one is asked to finish it, and the job stays until then.
    """
    if force and wait is not None:
        raise typer.BadParameter("give one of them", param_hint="--force and --wait")
    if id is None and (force or wait is not None):
        raise typer.BadParameter("it is about one job; name its ID", param_hint="--force" if force else "--wait")
    one = _remove(force, None if wait is None else parsing.duration(wait, "--wait"))
    _change(context, "remove", type, id, wanted, one, every=every, dry_run=dry_run, yes=yes)


# All that match


def _change_all(context: typer.Context, action: str, type: Any, wanted: Filter, *, dry_run: bool, yes: bool) -> None:
    """Count the jobs, ask, and have a bulk action change them while its progress is shown."""
    asked, number = program.run(context, lambda jobs: _counted(jobs, action, type, wanted))
    what = f"{output.many(number, 'job')} of type {shown(type)}"
    form = {"type": names.name(type), "action": action, "counted": number, "bulk_action": None}
    if dry_run or not number:
        output.tell(context, form, f"{what} match" + ("es" if number == 1 else ""))
        return
    verb = context.command.name or action
    terminal.confirm(f"{verb.capitalize()} {what}?", yes)

    async def body(jobs: JobsService) -> JobEvent:
        id = await jobs.bulk_actions.add(
            action, type, asked.wanted, program.user(), moment=asked.moment, counted=number
        )
        if not output.wants_json(context):
            output.line(f"{what} to {verb}, by bulk action {shown(id)}")
        return await _ended(jobs, id)

    event = program.run(context, body, supervise=True)
    _tell(context, event, {**form, "bulk_action": names.name(event.id)}, f"of type {shown(type)} {_DONE[action]}")


async def _counted(jobs: JobsService, action: str, type: Any, wanted: Filter) -> tuple[Asked, int]:
    """Return the action as of now, and the number of all jobs that it would change."""
    from jobs_service.service import bulk_actions

    await program.require_type(jobs, type)
    asked = await bulk_actions.asked(jobs, action, type, wanted)
    found = await bulk_actions.count(jobs, asked)
    if found.is_all:
        return asked, found.matching
    done = bulk_actions.Done()
    with terminal.Bar() as bar:
        async with aclosing(bulk_actions.steps(jobs, asked, done, dry_run=True)) as steps:
            async for _ in steps:
                bar.show(f"{done.matched} of {output.many(done.read, 'job')} match")
    return asked, done.matched


async def _ended(jobs: JobsService, id: Any) -> JobEvent:
    """Follow a bulk action to its end; say what becomes of it if this is interrupted."""
    import asyncio

    from jobs_service.service.bulk_actions import TYPE

    try:
        return await followed(jobs, TYPE, id, lambda event: None, sys.stderr)
    except asyncio.CancelledError:
        program.say(
            f"interrupted; any {program.PROGRAM} serve goes on with it, and {program.PROGRAM} run {TYPE} {shown(id)} "
            f"does; {program.PROGRAM} cancel {TYPE} {shown(id)} ends it"
        )
        raise


def _tell(context: typer.Context, event: JobEvent, form: dict[str, Any], done: str) -> None:
    """Print what a bulk action has done.

    Raises:
        AnswerIsNo: it has failed, or was canceled.
    """
    figures = event.result if isinstance(event.result, dict) else {}
    large = figures.get("too_large")
    more = f"; {output.many(large, 'job')} would become too large, and stay as before" if large else ""
    output.tell(context, {**form, **figures}, f"{output.many(figures.get('changed', 0), 'job')} {done}{more}")
    if event.outcome != "succeeded":
        why = "" if event.error is None else f": {output.error_text(event.error)}"
        raise program.AnswerIsNo(f"bulk action {shown(event.id)} {output.status_text(event)}{why}")


# One job runs


def run(context: typer.Context, type: TypeArgument, id: IdArgument, yes: YesOption = False) -> None:
    """Have a job that waits run now.

    That is one that is scheduled, or waits for another attempt. A process with its handler takes it: jobs-service
    serve. A bulk action is run by this command itself.
    """
    from jobs_service import JobEvent
    from jobs_service.service.bulk_actions import TYPE

    is_bulk = parse_type(type) == TYPE

    async def body(jobs: JobsService, type: JobType, id: JobId) -> Job | JobEvent:
        from jobs_service.service import bulk_actions

        if is_bulk:
            jobs.bulk_actions.start()
            return await _ended(jobs, id)
        if not await bulk_actions.run_now(jobs, type, id, None):
            job = await jobs.get(type, id)
            raise program.AnswerIsNo(f"{output.name(type, id)} does not wait: it is {output.status_text(job)}")
        return await output.without_in_changed(jobs, await jobs.get(type, id))

    job = on_job(context, (type, id), body, changing="run", yes=yes, supervise=is_bulk)
    if isinstance(job, JobEvent):
        _tell(context, job, {"bulk_action": names.name(job.id)}, f"changed by {output.name(job.type, job.id)}")
    else:
        output.tell(context, job.to_dict(), f"{output.name(job.type, job.id)}: {output.status_text(job)}")


def resubmit(
    context: typer.Context,
    type: TypeArgument,
    id: IdArgument,
    data: DataOption = None,
    priority: PriorityOption = None,
    after: InOption = None,
    at: AtOption = None,
    yes: YesOption = False,
) -> None:
    """Run a job again, or change one that waits.

    A finished job is pending at once, a running one when it has finished. Options that are not given change nothing.
    """
    changes: dict[str, Any] = {}
    if data is not None:
        changes["data"] = parsing.data(data)
    if priority is not None:
        changes["priority"] = parse_priority(priority)
    run_at = parsing.run_at(after, at)
    if run_at is not None:
        changes["run_at"] = run_at

    async def body(jobs: JobsService, type: JobType, id: JobId) -> Job:
        return await output.without_in_changed(jobs, await jobs.resubmit(type, id, **changes))

    job = on_job(context, (type, id), body, changing="resubmit", yes=yes)
    output.tell(context, job.to_dict(), f"{output.name(job.type, job.id)}: {output.status_sentence(job)}")
