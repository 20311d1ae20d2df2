"""`health`: whether jobs are run and watched over, in one line and an exit code."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from jobs_service.cli import exits, output, session, values
from jobs_service.cli.names import shown
from jobs_service.cli.options import DURATION_HELP, JsonOption, StoreOption

if TYPE_CHECKING:
    from jobs_service import JobsService, QueueState

TOLERATED = 15.0
"""Seconds by which a scheduled job may be late before nobody can be there to make it ready."""
SECOND_LOOK = 1.5
"""Seconds in which somebody who watches over jobs has taken those of a dead process back."""
AT_ONCE = 100

MaxWaitOption = Annotated[
    str | None,
    typer.Option(
        "--max-wait", metavar="S", help=f"It is bad when a job has been ready for longer than this: {DURATION_HELP}."
    ),
]


class _Found(NamedTuple):
    """What a look at the store has found.

    Attributes:
        types: how many there are.
        paused: how many of them are paused.
        running: how many jobs run.
        oldest: seconds that a job of a type that is not paused has been ready, with type and id; None for none. The
            seconds are None where no ready job has a record with room for them.
        late: seconds by which the first scheduled job is late.
        alive, dead: others that have the store open, and that died with it open; None where nobody can tell.
    """

    types: int
    paused: int
    running: int
    oldest: tuple[float | None, Any, Any] | None
    late: float
    alive: int | None
    dead: int | None


def health(
    context: typer.Context, max_wait: MaxWaitOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Say in one line whether jobs are run and watched over.

    The exit code is 0 when all is well; 1 when scheduled jobs are not made ready, dead processes' jobs are not taken
    back, nobody else has the embedded store open, or a job has been ready for longer than --max-wait; 3 when the store
    cannot be reached.
    """
    most = None if max_wait is None else values.duration(max_wait, "--max-wait")
    found, location = session.run(context, store, _look)
    problems = _problems(found, most)
    if as_json:
        output.json_line({"healthy": not problems, "problems": problems, "store": location, **_as_json(found)})
    if problems:
        raise exits.AnswerIsNo(f"{'; '.join(problems)}: {location}: {_sentence(found)}")
    if not as_json:
        output.line(f"healthy: {location}: {_sentence(found)}")


async def _look(jobs: JobsService) -> tuple[_Found, str]:
    import asyncio

    from jobs_service.sources import Sources

    types = await jobs.types()
    states: list[QueueState] = []
    running = 0
    for at in range(0, len(types), AT_ONCE):
        some = types[at : at + AT_ONCE]
        states += await asyncio.gather(*map(jobs.queue_state, some))
        running += sum(map(len, await asyncio.gather(*map(jobs.active_ids, some))))
    now = Sources().wall_time()
    oldest = max(
        (
            (None if state.ready_since is None else now - state.ready_since, type, state.id)
            for type, state in zip(types, states, strict=True)
            if state.id is not None and not state.paused
        ),
        key=lambda job: -math.inf if job[0] is None else job[0],
        default=None,
    )
    due = min((state.next_scheduled for state in states if state.next_scheduled is not None), default=now)
    others = await jobs.store.other_processes()
    if others is not None and others[1]:
        await asyncio.sleep(SECOND_LOOK)
        others = await jobs.store.other_processes()
    alive, dead = others or (None, None)
    paused = sum(state.paused for state in states)
    return _Found(len(types), paused, running, oldest, max(now - due, 0.0), alive, dead), jobs.store.location


def _problems(found: _Found, max_wait: float | None) -> list[str]:
    problems = []
    if found.alive == 0:
        problems.append("nobody runs jobs or watches over them: no other process has the store open")
    elif found.dead:
        problems.append(f"nobody watches over jobs: the jobs of dead processes ({found.dead}) are not taken back")
    if found.late > TOLERATED:
        problems.append(f"nobody watches over jobs: scheduled ones are late by {output.duration_text(found.late)}")
    waited = None if found.oldest is None else found.oldest[0]
    if max_wait is not None and waited is not None and waited > max_wait:
        problems.append(f"a job has been ready for {output.duration_text(waited)}")
    return problems


def _sentence(found: _Found) -> str:
    parts = [output.many(found.types, "type"), f"{output.many(found.running, 'job')} running"]
    if found.paused:
        parts[0] += f" ({found.paused} paused)"
    if found.oldest is None:
        parts.append("none ready")
    else:
        seconds, type, id = found.oldest
        since = "its record tells no time" if seconds is None else output.duration_text(max(seconds, 0.0))
        parts.append(f"ready for longest: {output.name(type, id)}, {since}")
    if found.alive:
        parts.append(f"open in {found.alive} more process{'' if found.alive == 1 else 'es'}")
    return ", ".join(parts)


def _as_json(found: _Found) -> dict[str, Any]:
    seconds, type, id = found.oldest or (None, None, None)
    waited = None if seconds is None else round(seconds, 3)
    oldest = None if found.oldest is None else {"type": shown(type), "id": shown(id), "seconds": waited}
    return {
        "types": found.types,
        "paused": found.paused,
        "running": found.running,
        "oldest_ready": oldest,
        "scheduled_late_seconds": round(found.late, 3),
        "other_processes": found.alive,
        "dead_processes": found.dead,
    }
