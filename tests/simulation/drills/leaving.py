"""A service that is left, or fails, while others wait for something of it: they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from jobs_service import JobsError, JobsService, JobState, RunningJob, ServiceClosed, SupervisorFailed
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.checks import held_after
from tests.simulation.drills.drill import Drill, all_ended
from tests.simulation.weather import tree_tasks


async def leave_while_others_wait(drill: Drill) -> None:
    """Leave a service while others wait for jobs and their events: each is told soon that it was closed."""
    job = await _prepare(drill)
    service = drill.client.process.service()
    others: list[asyncio.Task[Any]] = []
    try:
        async with service:
            others += _waiting(drill, service)
            await asyncio.sleep(drill.random.choice([drill.some_time(), drill.moment]))
            await drill.pass_turns()
        _complain_of(drill, await all_ended(others, drill.moment), others, ServiceClosed)
    finally:
        await all_ended(others, 0)
    for what in held_after(service):
        drill.complain(f"a service was left, and holds {what}")
    if drill.random.random() < 0.3:
        async with service:
            found = await service.get(drill.type, "a")
        if found.state is not JobState.RUNNING:
            drill.complain(f"a service was opened again, and sees {found!r}")
    await _clean_up(drill, job)


async def fail_while_others_wait(drill: Drill) -> None:
    """Have a service fail that may not be started again: it is said to all who wait, and raised out of its body."""
    run, random = drill.run, drill.random
    job = await _prepare(drill)
    settings = drill.client.process.settings.model_copy(update={"max_restarts": 0})
    service = drill.client.process.service(settings=settings)
    others: list[asyncio.Task[Any]] = []
    here = asyncio.current_task()
    assert here is not None
    asked = here.cancelling()
    try:
        async with service:
            others += _waiting(drill, service)
            await asyncio.sleep(random.choice([drill.some_time(), drill.moment]))
            top = [task for actor, task in tree_tasks(service) if actor is not None and actor.name == "type server"]
            run.crashes.crashed(drill.client.process)
            for each in top:
                each.cancel()
            await asyncio.sleep(drill.moment)
            drill.complain("a service has failed, and its body goes on")
    except SupervisorFailed:
        pass
    except asyncio.CancelledError:
        if here.cancelling() == asked:
            drill.complain("a service has failed, and its body was left as one that somebody has canceled")
        else:
            raise
    finally:
        _complain_of(drill, await all_ended(others, drill.moment), others, SupervisorFailed, ServiceClosed)
    for what in held_after(service):
        drill.complain(f"a service has failed, and holds {what}")
    await _clean_up(drill, job)


async def _prepare(drill: Drill) -> RunningJob:
    """Have one job run, and return it."""
    await drill.make_type()
    await drill.make_type(type=("none of", drill.type))
    await drill.add("a")
    [job] = await drill.client.accept(drill.type, timeout=0)
    return job


async def _clean_up(drill: Drill, job: RunningJob) -> None:
    await drill.client.finish(job)


def _waiting(drill: Drill, service: JobsService) -> list[asyncio.Task[Any]]:
    """Begin whatever may take for ever."""
    ways: list[Callable[[Drill, JobsService], Coroutine[Any, Any, object]]] = [
        _subscribe,
        _accept,
        _wait,
        _result,
        _stop_and_remove,
    ]
    chosen = drill.random.sample(ways, drill.random.randint(1, len(ways)))
    return [asyncio.create_task(way(drill, service), name=f"{drill.type}{way.__name__}") for way in chosen]


async def _subscribe(drill: Drill, service: JobsService) -> object:
    async with service.subscribe(drill.type, "a") as events:
        async for _ in events:
            pass
    return "the events ended"


async def _accept(drill: Drill, service: JobsService) -> object:
    return await service.accept(("none of", drill.type), timeout=None)


def _wait(drill: Drill, service: JobsService) -> Coroutine[Any, Any, object]:
    return service.wait(drill.type, "a", "finished")


def _result(drill: Drill, service: JobsService) -> Coroutine[Any, Any, object]:
    return service.result(drill.type, "a")


async def _stop_and_remove(drill: Drill, service: JobsService) -> object:
    drill.client.begin(STOP_AND_REMOVE, drill.type, "a")
    await service.stop_and_remove(drill.type, "a", timeout=100.0)
    return "it was removed"


def _complain_of(
    drill: Drill, late: list[asyncio.Task[Any]], others: list[asyncio.Task[Any]], *wanted: type[JobsError]
) -> None:
    """Whoever has waited is told why there is nothing to wait for."""
    for each in others:
        if each in late:
            drill.complain(f"{each.get_name()} waits for a service that is closed")
        elif each.cancelled() or not isinstance(each.exception(), wanted):
            told = "that it was canceled" if each.cancelled() else repr(each.exception() or each.result())
            drill.complain(f"{each.get_name()} was told {told}, not {wanted[0].__name__}")
