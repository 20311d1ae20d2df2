"""Pages of jobs in any state, from either end: all of them, each once, in the order that the state has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import fdb.tuple

from jobs_service import JobError, JobId, JobState, Outcome
from tests.simulation.drills.drill import Drill
from tests.simulation.model_job import READY, RUNNING, SCHEDULED, ModelJob

_LATER: Final = 300.0
_IDS: Final[tuple[JobId, ...]] = ("a", "ab", "b", b"b", "c", "c\x00", "d", b"\xff", "e", "f", "ab\xff", "g")
_IN_ORDER: Final[dict[str, tuple[Callable[[ModelJob], bool], Callable[[JobId, ModelJob], Any]]]] = {
    "ready": (lambda job: job.state is READY, lambda id, job: (job.priority, job.place)),
    "scheduled": (lambda job: job.state is SCHEDULED, lambda id, job: (job.run_at, _packed(id))),
    "running": (lambda job: job.state is RUNNING, lambda id, job: job.place),
    "failed": (lambda job: job.outcome is Outcome.FAILED, lambda id, job: job.place),
}
"""The states that have an index: which jobs they are of, and in which order."""

_BY_ID: Final[dict[Any, Callable[[ModelJob], bool]]] = {
    None: lambda job: True,
    JobState.PENDING: lambda job: job.pending,
    JobState.FINISHED: lambda job: job.outcome is not None,
    "succeeded": lambda job: job.outcome is Outcome.SUCCEEDED,
    "canceled": lambda job: job.outcome is Outcome.CANCELED,
}
"""The others, whose jobs come in the order of their ids."""


async def page_through(drill: Drill) -> None:
    """Have jobs in all states, and page through those of each."""
    random, client, type = drill.random, drill.client, drill.type
    await drill.make_type()
    ids = random.sample(_IDS, random.randint(1, len(_IDS)))
    now = client.process.clock.wall_time()
    for id in ids:
        run_at = random.choice([None, None, None, now + _LATER, now + 2 * _LATER])
        await drill.add(id, run_at=run_at, priority=random.choice([-1, 0, 0, "p"]))
    for job in await client.accept(type, random.randint(1, len(ids)), timeout=0):
        fate = random.randrange(5)
        if fate == 0:
            await client.update(job)
        elif fate == 1:
            await client.remove(type, job.id)
        if fate in (1, 2):
            await client.finish(job)
        elif fate == 3:
            await client.finish(job, outcome=Outcome.FAILED, error=JobError("Paged", "as it should"))
    await drill.settle()
    for _ in range(10):
        await _page(drill, random.choice([*_IN_ORDER, *_BY_ID]))


async def _page(drill: Drill, state: Any) -> None:
    random = drill.random
    limit, newest_first = random.choice([1, 2, 3, 100]), random.random() < 0.5
    prefix: Any = random.choice([None, None, None, "a", "ab", b"", "b", "", b"\xff"])
    jobs = drill.all()
    if state in _IN_ORDER:
        fits, key = _IN_ORDER[state]
        wanted = sorted((id for id, job in jobs.items() if fits(job)), key=lambda id: key(id, jobs[id]))
    else:
        wanted = sorted((id for id, job in jobs.items() if _BY_ID[state](job)), key=_packed)
    if prefix is not None:
        wanted = [id for id in wanted if isinstance(id, type(prefix)) and id.startswith(prefix)]
    wanted = wanted[::-1] if newest_first else wanted
    seen: list[JobId] = []
    after: str | None = None
    while True:
        page = await drill.jobs.page(
            drill.type, state=state, limit=limit, after=after, newest_first=newest_first, prefix=prefix
        )
        seen += [job.id for job in page.jobs]
        if len(page.jobs) > limit or len(seen) > len(wanted):
            break
        if (after := page.next) is None:
            break
    if seen != wanted:
        drill.complain(
            f"{seen} are in state {state} ({limit} at a time, prefix={prefix!r}, newest_first={newest_first}), "
            f"not {wanted}"
        )


def _packed(id: JobId) -> bytes:
    packed: bytes = fdb.tuple.pack((id,))
    return packed
