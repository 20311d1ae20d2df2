"""Many jobs that are added at once, in several transactions: those before one that is refused are there, none after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from jobs_service import JobExists, JobId, JobsError, NewJob
from jobs_service.errors import InvalidJob
from tests.simulation.calls import OK, UNKNOWN, Call
from tests.simulation.drills.drill import Drill, all_ended
from tests.simulation.drills.mixing import Kind

_MOST: Final = 24
_ROOMY: Final = 50_000
"""Bytes of a transaction that is never full of these jobs."""


class _Refused(Exception):
    """Ends what gives the jobs."""


async def add_in_parts(drill: Drill) -> None:
    """Add many jobs, of which one is there, or cannot be one, or is not given any more."""
    if drill.run.world.cluster.limits.transaction < _ROOMY:
        return  # how many fit into one is not known so exactly
    for _ in range(3):
        await _add(drill)
        for id in drill.all():
            await drill.client.remove(drill.type, id, force=True)


async def _add(drill: Drill) -> None:
    random = drill.random
    await drill.make_type()
    batch = random.choice([1, 2, 3, 5])
    count = random.randint(1, _MOST)
    ids: list[JobId] = [f"{number}" for number in range(count)]
    service = drill.client.process.service(
        settings=drill.client.process.settings.model_copy(update={"add_batch": batch}), supervise=False
    )
    place = random.randrange(count)
    trouble = random.choice(["none", "none", "exists", "exists", "invalid", "ends", "leaves"])
    rule: Any = "error" if trouble == "exists" else random.choice(["error", "ignore", "resubmit"])
    there = [ids[place]] if trouble == "exists" else [] if rule == "error" else random.sample(ids, min(count, 3))
    if there:
        await drill.client.add_many(drill.type, there)
    calls = [drill.client.begin("add", drill.type, id) for id in ids]
    before = {id: drill.job(id) for id in there}
    added: list[Any] = []
    error: BaseException | None = None
    async with service as jobs:
        task = asyncio.create_task(jobs.add_many(drill.type, _given(drill, calls, trouble, place), if_exists=rule))
        try:
            if trouble == "leaves":
                await drill.pass_turns()
                await asyncio.sleep(drill.some_time())
                task.cancel()
            late = await all_ended([task], drill.moment * 3)
        finally:
            await all_ended([task], 0)
        if late and trouble != "leaves":
            drill.complain(f"{count} jobs were to be added, {batch} at a time, and are not in the end: {drill.all()}")
        elif task.cancelled():
            pass
        elif (error := task.exception()) is None:
            added = task.result()
    await drill.settle()
    for call in calls:
        call.outcome = UNKNOWN if trouble != "none" or rule == "ignore" else OK
        call.last_version = drill.client.version
    # Jobs wait for the next one before they are sent: who fails to give that has not sent those either.
    whole = (place if trouble == "exists" else max(place - 1, 0)) // batch * batch
    if trouble in ("none", "leaves"):
        if error is not None:
            raise error
    elif not isinstance(error, {"exists": JobExists, "invalid": InvalidJob, "ends": _Refused}[trouble]):
        drill.complain(f"one of {count} jobs was to be refused ({trouble}), and {error!r} was raised")
    found = [id for id in ids if drill.job(id) is not None and id not in there]
    ends = [*range(0, count, batch), count] if trouble == "leaves" else [count if trouble == "none" else whole]
    if not any(found == [id for id in ids[:end] if id not in there] for end in ends):
        drill.complain(f"{count} jobs were added, {batch} at a time ({trouble} at {place}, {rule}): there are {found}")
    if trouble == "none":
        _compare(drill, calls, added, before, rule)


def _given(drill: Drill, calls: list[Call], trouble: str, place: int) -> Iterator[NewJob]:
    """Give the jobs, until there is trouble."""
    for number, call in enumerate(calls):
        if number == place and trouble == "ends":
            raise _Refused
        data = float("nan") if number == place and trouble == "invalid" else drill.client.data(call)
        yield NewJob(call.id or "", data)


def _compare(drill: Drill, calls: list[Call], added: list[Any], before: dict[JobId, Any], rule: str) -> None:
    """Compare what was answered with what is there: one answer for each job, in their order."""
    if [job.id for job in added] != [call.id for call in calls]:
        drill.complain(f"{[call.id for call in calls]} were added, and {[job.id for job in added]} answered")
        return
    for call, job in zip(calls, added, strict=True):
        stays = rule == "ignore" and call.id in before
        data = drill.job(job.id)
        if data is None or (not stays and job.data != drill.client.data(call)) or (stays and data != before[job.id]):
            drill.complain(f"{call.id!r} was added ({rule}), {job!r} was answered, and it is {data}")


async def enqueue_in_parts(drill: Drill) -> None:
    """Enqueue many jobs of a type that nobody has made: it is made with the first of them, and each is there once."""
    random = drill.random
    kind = Kind((drill.type, "kind"))
    settings = drill.client.process.settings.model_copy(update={"add_batch": random.choice([1, 2, 4])})
    unique, count = random.random() < 0.6, random.randint(1, 12)
    wanted = [{"number": number % 5 if unique else number} for number in range(count)]
    removed = random.random() < 0.2
    async with drill.client.process.service(settings=settings, supervise=False) as jobs:
        if removed:
            await drill.make_type(type=kind.type)
            await drill.jobs.clear_type_timeout(kind.type)
        answered: list[Any] = []
        with contextlib.suppress(JobsError):
            answered = await jobs.enqueue_many(kind, wanted, unique=unique)
            if removed:
                drill.complain(f"{kind.type!r} was removed, and {answered} were enqueued")
    there = drill.all(kind.type)
    if removed:
        if there:
            drill.complain(f"{kind.type!r} was removed, and has {there}")
        return
    if [job.data for job in answered] != wanted or len(there) != (min(count, 5) if unique else count):
        drill.complain(f"{wanted} were enqueued (unique={unique}), {answered} answered, and there are {there}")
    if not {job.id for job in answered} <= there.keys():
        drill.complain(f"{answered} were answered, and there are {[*there]}")
    created = sum(bool(job.created) for job in answered)
    if created != len(there):
        drill.complain(f"{created} of {answered} are said to be new, and there are {len(there)}")
