"""A process that is asked to be quiet, to go on and to stop: it does each soon, and is heard of no more in the end."""

from __future__ import annotations

import asyncio
from typing import Final

from jobs_service import JobsService, ProcessInfo, ProcessState, RunningJob
from tests.simulation.drills.drill import Drill, all_ended

_PERIOD: Final = 60.0
"""Seconds between two heartbeats: who is asked does not wait for one."""

_HELD_OFF: Final = 1.0
"""Seconds after which the row of a process is written again when something has changed, and a little."""


async def ask_a_process(drill: Drill) -> None:
    """Run handlers in a listed process, and ask it again and again to be quiet and to go on, and to stop."""
    settings = drill.client.process.settings.model_copy(update={"process_heartbeat": _PERIOD})
    service = drill.client.process.service(settings=settings)
    begun: list[object] = []

    @service.handler(drill.type, slots=2, timeout=60.0)
    async def run(job: RunningJob, *, call: int = 0) -> None:
        begun.append(job.id)
        await asyncio.sleep(drill.random.choice([0.0, 0.2]))

    started = asyncio.Event()
    async with service:
        running = asyncio.create_task(service.run(started=started.set), name=f"{drill.type} runs")
        try:
            await started.wait()
            await drill.settle()
            await _ask(drill, service, running, begun)
        finally:
            await all_ended([running], 0)
    await drill.settle()


def _is_it(drill: Drill, each: ProcessInfo) -> bool:
    return any(drill.type == handler.type for handler in each.handlers)


async def _find(drill: Drill) -> ProcessInfo | None:
    return next((each for each in await drill.jobs.processes() if _is_it(drill, each)), None)


async def _ask(drill: Drill, service: JobsService, running: asyncio.Task[None], begun: list[object]) -> None:
    random, moment = drill.random, drill.moment + _HELD_OFF
    found = await _find(drill)
    if found is None or found.state is not ProcessState.RUNNING:
        drill.complain(f"a process runs handlers, and is listed as {found}")
        return
    is_quiet, number = False, 0
    for _ in range(random.randint(2, 6)):
        asker = random.choice([drill.jobs, service])
        wanted = (not is_quiet) == (random.random() < 0.75)
        await (asker.quiet_process if wanted else asker.resume_process)(found.id)
        is_quiet = wanted
        if random.random() < 0.4:
            await drill.pass_turns()
            continue
        await asyncio.sleep(moment)
        seen = await _find(drill)
        if seen is None or (seen.state is ProcessState.QUIET) != is_quiet:
            drill.complain(f"a process was asked to {'be quiet' if is_quiet else 'go on'}, and is {seen}")
        elif is_quiet and seen.taken:
            drill.complain(f"a quiet process has ended what it had, and is {seen}")
        number += 1
        had = len(begun)
        await drill.add(str(number))
        await asyncio.sleep(drill.moment)
        if (len(begun) == had) != is_quiet:
            drill.complain(f"of a process that is {seen} the handlers have begun {begun[had:]}")
        if is_quiet:
            await drill.client.remove(drill.type, str(number))
    await _end(drill, running, found)


async def _end(drill: Drill, running: asyncio.Task[None], found: ProcessInfo) -> None:
    """Have the process end, by a request or by itself."""
    random = drill.random
    by_request = random.random() < 0.7
    if by_request:
        await drill.jobs.stop_process(found.id)
        await asyncio.sleep(random.choice([0.0, drill.some_time(), drill.moment + _HELD_OFF]))
    is_canceled = not by_request or random.random() < 0.3
    if is_canceled and not running.done():
        running.cancel()
    else:
        is_canceled = False
    late = await all_ended([running], drill.moment + _HELD_OFF)
    if late:
        drill.complain(f"{found} was asked to stop, and runs")
    elif is_canceled != running.cancelled():
        drill.complain(f"{found} has ended as {running!r}; it was {'' if is_canceled else 'not '}canceled")
    if await _find(drill) is not None:
        drill.complain(f"{found} has ended, and is listed")
