"""Jobs that nobody touches meanwhile: all who ask for them, or take them, get what is there."""

from __future__ import annotations

from typing import Any, Final

from jobs_service import JobId, JobState
from tests.simulation.drills.drill import Drill
from tests.simulation.rarities import few_at_once_are_drawn
from tests.simulation.sizes import pages_are_small

_MOST: Final = 9
_LATER: Final = 300.0
_ROOMY: Final = 20_000
"""Bytes of a transaction that has room for all that these workers take."""


async def take_what_is_there(drill: Drill) -> None:
    """Ask for some jobs of several in one way or another: as many come as there are, the first ones first."""
    random = drill.random
    await drill.make_type()
    ids: list[JobId] = [f"{number}" for number in range(random.randint(1, _MOST))]
    await drill.client.add_many(drill.type, ids)
    await drill.settle()
    while ids:
        limit = random.choice([1, 2, 3, _MOST, 100])
        terms: dict[str, Any] = {"timeout": random.choice([0, 0, 0.5, None]), "spread": random.choice([1, 1, 2])}
        found = await drill.client.accept(drill.type, limit, **terms)
        taken = [job.id for job in found]
        # How many are read or written at once may be drawn so small that fewer come.
        enough = min(limit, len(ids), _MOST if drill.run.world.cluster.limits.transaction > _ROOMY else 3)
        enough = 1 if pages_are_small() or few_at_once_are_drawn() else enough
        in_order = terms["spread"] > 1 or taken == ids[: len(taken)]
        if not in_order or not {*taken} <= {*ids} or not enough <= len(taken) <= limit:
            drill.complain(f"{limit} of {ids} were asked for with {terms}, and {taken} came")
            return
        ids = [id for id in ids if id not in taken]
        for job in found:
            await drill.client.finish(job)
    limit = random.choice([1, 3])
    if await drill.client.accept(drill.type, limit, timeout=random.choice([0, 0.3])):
        drill.complain("a job came, and there is none")


async def count_what_is_there(drill: Drill) -> None:
    """Count and list jobs in all states, in pages of any size and up to any limit."""
    random, jobs, type = drill.random, drill.jobs, drill.type
    await drill.make_type()
    now = drill.client.process.clock.wall_time()
    ids: list[JobId] = [f"{number}" for number in range(random.randint(2, _MOST))]
    later: list[JobId] = [f"later {number}" for number in range(random.randint(0, _MOST))]
    await drill.client.add_many(type, ids)
    await drill.add(*later, run_at=now + _LATER)
    taken = await drill.client.accept(type, random.randint(1, len(ids)), timeout=0)
    ended = taken[: random.randint(0, len(taken))]
    for job in ended:
        await drill.client.finish(job)
    running = {job.id for job in taken[len(ended) :]}
    ready = {*ids} - {job.id for job in taken}
    of_state = {
        JobState.PENDING: ready | {*later},
        JobState.RUNNING: running,
        JobState.FINISHED: {job.id for job in ended},
    }
    for limit in (None, *random.sample(range(1, 2 * _MOST), 6)):
        for due_by, pending in ((None, ready | {*later}), (now + 1.0, ready), (now + 2 * _LATER, ready | {*later})):
            counted = await jobs.pending_count(type, due_by=due_by, limit=limit)
            wanted = len(pending) if limit is None else min(limit, len(pending))
            # What is ready counts as due by its own time, not by that of its addition.
            if counted != wanted:
                drill.complain(f"{counted} are pending (limit={limit}, due_by={due_by}), not {wanted}")
    active = await jobs.active_ids(type)
    if len(active) != len(running) or {*active} != running:
        drill.complain(f"{active} run, and must be {running}")
    for state, some in ((None, set().union(*of_state.values())), *of_state.items()):
        size = random.choice([1, 2, 3, 1000])
        seen = [job.id async for job in jobs.list(type, state=state, page_size=size)]
        if seen != sorted(some, key=str):
            drill.complain(f"in state {state} are {seen}, in pages of {size}, and must be {sorted(some, key=str)}")
        paged: list[JobId] = []
        after: str | None = None
        while True:
            page = await jobs.page(type, state=state, limit=size, after=after)
            paged += [job.id for job in page.jobs]
            if (after := page.next) is None:
                break
        if len(paged) != len(some) or {*paged} != some:
            drill.complain(f"in state {state} are {paged}, in pages of {size}, and must be {sorted(some, key=str)}")
    counts = (await jobs.counts(type))[type]
    told = [counts.ready, counts.scheduled, counts.running, counts.succeeded]
    if told != [len(ready), len(later), len(running), len(ended)]:
        drill.complain(f"counted are {counts}")
