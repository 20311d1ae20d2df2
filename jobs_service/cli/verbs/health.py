"""`health`, `failures`, `verify`: report whether jobs are run, why some failed, and whether their rows are whole."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service import names
from jobs_service.cli import output, parsing, program
from jobs_service.cli.output import Column
from jobs_service.cli.parsing import DURATION_HELP
from jobs_service.names import printable, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.model.process import OutboxInfo
    from jobs_service.service.failures import Failures, Group, Outage
    from jobs_service.verifying import Verification

RECOVERY_TIME = 1.5
"""Seconds within which a running process monitor takes back the jobs of a dead process."""

MaxWaitOption = Annotated[
    str | None,
    typer.Option(
        "--max-wait", metavar="S", help=f"It is bad when a job has been ready for longer than this: {DURATION_HELP}."
    ),
]


# Health


class _StoreState(NamedTuple):
    """The state of the store that determines the verdict.

    Attributes:
        types: the number of types.
        paused: the number of paused types.
        running: the number of running jobs.
        crashing: the types whose runs crash.
        retrying: the number of jobs that wait for another attempt.
        oldest: seconds, type and id of the longest ready job of types that are not paused. None without ready jobs;
            the seconds are None if its record had no room for the time.
        late: seconds by which the first scheduled job is late.
        outboxes: those that processes relay.
        alive, dead: the number of other processes that have the store open, and of processes that died with it open;
            None if the store does not know.
    """

    types: int
    paused: int
    running: int
    crashing: tuple[Outage, ...]
    retrying: int
    oldest: tuple[float | None, Any, Any] | None
    late: float
    alive: int | None
    dead: int | None
    outboxes: tuple[OutboxInfo, ...]


def health(context: typer.Context, max_wait: MaxWaitOption = None) -> None:
    """Say in one line whether jobs are run and watched over.

    The exit code is 0 when all is well; 1 when scheduled jobs are not made ready, dead processes' jobs are not taken
    back, nobody else has the embedded store open, a job has been ready for longer than --max-wait, an outbox is not
    relayed, or the runs of a type crash (5 at least, and half of those that ended in the last 2 minutes, a fifth in 10,
    or nine tenths in 60); 3 when the store cannot be reached or read.
    """
    most = None if max_wait is None else parsing.duration(max_wait, "--max-wait")
    state, location = program.run(context, _read_state)
    problems = _problems(state, most)
    if output.wants_json(context):
        output.json_line({"healthy": not problems, "problems": problems, "store": location, **_health_form(state)})
    if problems:
        raise program.AnswerIsNo(f"{'; '.join(problems)}: {location}: {_sentence(state)}")
    if not output.wants_json(context):
        output.line(f"healthy: {location}: {_sentence(state)}")


async def _read_state(jobs: JobsService) -> tuple[_StoreState, str]:
    import asyncio

    from jobs_service.service.failures import last_hour
    from jobs_service.service.presence import relayed

    types = await jobs.types()
    states = [*zip(types, await jobs.queue_states(types), strict=True)]
    exist = {*types}
    counted = {type: counts for type, counts in (await jobs.counts()).items() if type in exist}
    now = Sources().wall_time()
    oldest = max(
        (
            (None if state.ready_since is None else now - state.ready_since, type, state.id)
            for type, state in states
            if state.id is not None and not state.paused
        ),
        key=lambda job: -math.inf if job[0] is None else job[0],
        default=None,
    )
    due = min((state.next_scheduled for _, state in states if state.next_scheduled is not None), default=now)
    others = await jobs.store.other_processes()
    if others is not None and others[1]:
        await asyncio.sleep(RECOVERY_TIME)
        others = await jobs.store.other_processes()
    alive, dead = others or (None, None)
    paused = sum(state.paused for _, state in states)
    late = max(now - due, 0.0)
    running, retrying = (sum(getattr(each, name) for each in counted.values()) for name in ("running", "retrying"))
    crashing = (await last_hour(jobs, counted)).outages
    outboxes = tuple(relayed(await jobs.processes()))
    state = _StoreState(len(types), paused, running, crashing, retrying, oldest, late, alive, dead, outboxes)
    return state, jobs.store.location


def _problems(state: _StoreState, max_wait: float | None) -> list[str]:
    from jobs_service.model.type_state import LATE

    problems = []
    if state.alive == 0:
        problems.append("nobody runs jobs or watches over them: no other process has the store open")
    elif state.dead:
        problems.append(f"nobody watches over jobs: the jobs of dead processes ({state.dead}) are not taken back")
    if state.late > LATE:
        problems.append(f"nobody watches over jobs: scheduled ones are late by {output.duration_text(state.late)}")
    waited = None if state.oldest is None else state.oldest[0]
    if max_wait is not None and waited is not None and waited > max_wait:
        problems.append(f"a job has been ready for {output.duration_text(waited)}")
    for outbox in state.outboxes:
        if outbox.error:
            problems.append(f"nothing is moved from outbox {printable(outbox.name)}: {printable(outbox.error)}")
        elif max_wait is not None and outbox.oldest is not None and outbox.oldest > max_wait:
            waited_there = output.duration_text(outbox.oldest)
            problems.append(f"a row of outbox {printable(outbox.name)} has waited for {waited_there}")
    if state.crashing:
        worst = state.crashing[0]
        others = (
            f", and those of {output.many(len(state.crashing) - 1, 'other type')}" if len(state.crashing) > 1 else ""
        )
        within = output.many(worst.minutes, "minute")
        runs = f"{worst.crashed} of {output.many(worst.ended, 'run')} of type {shown(worst.type)}"
        problems.append(f"{runs} crashed within the last {within}{others}")
    return problems


def _sentence(state: _StoreState) -> str:
    parts = [output.many(state.types, "type"), f"{output.many(state.running, 'job')} running"]
    if state.retrying:
        parts.append(f"{output.many(state.retrying, 'job')} waiting for another attempt")
    if state.paused:
        parts[0] += f" ({state.paused} paused)"
    if state.oldest is None:
        parts.append("none ready")
    else:
        seconds, type, id = state.oldest
        since = "its record tells no time" if seconds is None else output.duration_text(max(seconds, 0.0))
        parts.append(f"ready for longest: {output.name(type, id)}, {since}")
    # An error is told with the problems.
    parts += [output.outbox_text(replace(outbox, error="")) for outbox in state.outboxes]
    if state.alive:
        parts.append(f"open in {state.alive} more process{'' if state.alive == 1 else 'es'}")
    return ", ".join(parts)


def _health_form(state: _StoreState) -> dict[str, Any]:
    seconds, type, id = state.oldest or (None, None, None)
    waited = None if seconds is None else round(seconds, 3)
    oldest = None if state.oldest is None else {"type": names.name(type), "id": names.name(id), "seconds": waited}
    return {
        "types": state.types,
        "paused": state.paused,
        "running": state.running,
        "retrying": state.retrying,
        "crashing": [
            {"type": names.name(each.type), "crashed": each.crashed, "ended": each.ended, "minutes": each.minutes}
            for each in state.crashing
        ],
        "oldest_ready": oldest,
        "scheduled_late_seconds": round(state.late, 3),
        "other_processes": state.alive,
        "dead_processes": state.dead,
        "outboxes": [asdict(each) for each in state.outboxes],
    }


# Failures


def _types(group: Group) -> str:
    return ", ".join(map(shown, group.jobs))


def _error(group: Group) -> str:
    return printable(": ".join(filter(None, (group.error or "no error was kept", group.message))))


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{output.since_text(seconds)} ago"


FAILURE_COLUMNS = (
    Column("jobs", lambda group: str(group.count), right=True),
    Column("state", lambda group: group.state, status=True),
    Column("since", lambda group: _ago(group.first), whole=True),
    Column("last", lambda group: _ago(group.last), whole=True),
    Column("types", _types),
    Column("error", _error, below=True),
)


def failures(context: typer.Context) -> None:
    """Group failed and retrying jobs by what went wrong.

    It looks at 200 failed jobs, the newest, of the 20 types with most of them, at as many that wait for another attempt
    after a crash, and says so when there are more. What differs from job to job in an error's message is shown as "…".
    """
    found = program.run(context, _failures)
    read = {"failed": found.failed, "retrying": found.retrying, "read": found.read}
    output.rows(
        context, FAILURE_COLUMNS, found.groups, lambda group: {**group.to_dict(), **read}, "no failed or retrying jobs"
    )
    if found.is_cut and not output.wants_json(context):
        output.line(f"{found.read} of the {found.failed} failed and {found.retrying} retrying jobs were looked at")


async def _failures(jobs: JobsService) -> Failures:
    from jobs_service.service.failures import newest_failures

    return await newest_failures(jobs, await jobs.counts())


# Verify


def verify(context: typer.Context) -> None:
    """Check that the rows of jobs in the store belong together.

    It only reads, and the store may be in use. For each fault, as after a change of the store by hand, one line is
    printed, and the exit code is 1. It is about rows: a page that cannot be read ends it, with exit code 3.
    """
    as_json = output.wants_json(context)
    found, faults, location = program.run(context, lambda jobs: _verified(jobs, as_json))
    told = f"{output.many(found.jobs, 'job')} of {output.many(found.types, 'type')}"
    if as_json:
        form = {"sound": not faults, "faults": faults, "jobs": found.jobs, "types": found.types}
        output.json_line({**form, "types_not_compared": found.moving})
    if faults:
        raise program.AnswerIsNo(
            f"{location}: {output.many(faults, 'fault')}, {told}: end the programs that use it, and restore a backup, "
            "or copy its jobs into another store: jobs-service copy"
        )
    if not as_json:
        moving = f"; {output.many(found.moving, 'type')} changed too fast to compare counts" if found.moving else ""
        output.line(f"sound: {location}: {told}{moving}")


async def _verified(jobs: JobsService, as_json: bool) -> tuple[Verification, int, str]:
    from jobs_service.verifying import Verification

    found, faults = Verification(jobs.store, await jobs.store.prefix()), 0
    async for fault in found.faults():
        faults += 1
        if as_json:
            output.json_line({"fault": fault})
        else:
            output.line(printable(fault))
    return found, faults, jobs.store.location
