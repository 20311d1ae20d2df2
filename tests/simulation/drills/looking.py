"""What is told of a type, its jobs and its failures, by all who tell it, each field of it, while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Literal, cast

from jobs_service import Job, JobError, JobId, JobsService, JobState, JobType, Outcome, RunningJob, TypeCounts
from jobs_service.layer import running_jobs
from jobs_service.layer.key_parts import pack_id
from jobs_service.service.failures import Failures, newest_failures
from tests.reader import value_of
from tests.simulation.drills.drill import Drill
from tests.simulation.model_job import Key, ModelJob
from tests.simulation.overviews import (
    in_order,
    oldest_ready,
    wrong_counts,
    wrong_intervals,
    wrong_job,
    wrong_queue,
)
from tests.simulation.rarities import few_at_once_are_drawn
from tests.simulation.sizes import pages_are_small

_MOST: Final = 12
_MANY: Final = 40
"""Jobs of one state of which `stats` looks at some only."""

_LATER: Final = 2_000.0
_ORDERED: Final = ("ready", "scheduled", "retrying", "running", "failed")
"""States whose jobs are told in an order of their own."""

_ERRORS: Final = (("Boom", "disk {} is full"), ("Boom", "no route to 'host {}'"), ("KeyError", "it was not there"))


async def look_at_a_type(drill: Drill) -> None:
    """Have jobs in all states for different times, and ask for all that is told of them."""
    random = drill.random
    await drill.make_type()
    await _fill(drill)
    if random.random() < 0.3:
        await drill.jobs.pause(drill.type)
    await drill.settle()
    for _ in range(random.choice([1, 1, 2])):
        for complaint in [each async for each in _Look(drill).complaints()]:
            drill.complain(complaint)
        await asyncio.sleep(random.choice([0.0, 0.0, 7.0, 61.0]))
    await drill.jobs.resume(drill.type)


async def _fill(drill: Drill) -> None:
    """Make jobs of all kinds."""
    random, client = drill.random, drill.client
    now = client.process.clock.wall_time
    ids = [f"{number:02}" for number in range(random.choice([3, _MOST, _MOST]))]
    for id in ids:
        options: dict[str, Any] = {}
        if random.random() < 0.5:
            options["priority"] = random.choice([-1, 0, 5, "p"])
        if random.random() < 0.3:
            options["run_at"] = now() + random.choice([-40.0, 0.5, _LATER, _LATER + random.random()])
        await client.add(drill.type, id, **options)
        await asyncio.sleep(random.choice([0.0, 0.004, 0.3, 3.0]))
    if random.random() < 0.15 and drill.run.world.cluster.limits.transaction > 50_000:
        # The newest ones are not among the first, nor among the last ones that are looked at.
        await client.add_many(drill.type, [f"many {number:02}" for number in range(_MANY)])
        await asyncio.sleep(2.0)
    most = random.choice([len(ids), random.randint(1, len(ids))])
    for job in await client.accept(drill.type, most, timeout=0):
        await asyncio.sleep(random.choice([0.0, 0.004, 0.3, 3.0]))
        ways = [_finish, _fail, _fail, _fail, _crash, _release, _leave_running, _leave_running, _end_and_resubmit]
        await random.choice(ways)(drill, job)


async def _finish(drill: Drill, job: RunningJob) -> None:
    await drill.client.finish(job, result={"of": job.id})


async def _fail(drill: Drill, job: RunningJob) -> None:
    kind, message = drill.random.choice(_ERRORS)
    error = JobError(kind, message.format(drill.random.randint(1, 999)), drill.random.choice(["", "line 1"]))
    outcome = drill.random.choice([Outcome.FAILED, Outcome.FAILED, Outcome.FAILED, Outcome.CANCELED])
    await drill.client.finish(job, outcome=outcome, error=drill.random.choice([error, error, error, None]))


async def _crash(drill: Drill, job: RunningJob) -> None:
    """End a run as one that is to be tried again, as the runner does."""
    now = drill.client.process.clock.wall_time()
    run_at = now + drill.random.choice([0.0, _LATER])
    report = running_jobs.RunReport(error=b'["Boom","again",""]', reason="Boom")
    access = drill.jobs._access
    place = access.keys(job.type), job.id, pack_id(job.id)
    await access.transact(lambda unit: running_jobs.crash(unit, place, job.lock, report, run_at))


async def _release(drill: Drill, job: RunningJob) -> None:
    await drill.client.release(job)


async def _leave_running(drill: Drill, job: RunningJob) -> None:
    if drill.random.random() < 0.5:
        await job.progress(1, 2, "so far")


async def _end_and_resubmit(drill: Drill, job: RunningJob) -> None:
    await drill.client.finish(job)
    await drill.client.resubmit(job.type, job.id)


class _FewOnPage:
    """A service of which pages have a few jobs at most, as those of types with very many failures."""

    def __init__(self, jobs: JobsService, most: int) -> None:
        self._jobs, self._most = jobs, most
        self._context = jobs._context

    async def page(self, type: JobType, *, limit: int, **terms: Any) -> Any:
        """Return a page."""
        return await self._jobs.page(type, limit=min(limit, self._most), **terms)

    async def get_redaction(self, type: JobType) -> Any:
        """Return what is secret."""
        return await self._jobs.get_redaction(type)


class _Look:
    """One look at everything."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self._jobs: dict[JobId, ModelJob] = drill.all()
        self._clock = drill.client.process.clock.wall_time

    async def complaints(self) -> AsyncIterator[str]:
        """Yield what is wrong."""
        for look in (self._counts, self._queue, self._times, self._pages, self._failures):
            began = self._drill.all()
            found = await look()
            if self._drill.all() == began == self._jobs:
                for each in found:
                    yield each

    async def _counts(self) -> list[str]:
        jobs, type = self._drill.jobs, self._drill.type
        counted = self._drill.run.history.tallies.of_type(type)
        one, every = await jobs.counts(type), await jobs.counts()
        found = [f"it was asked for {type!r}, and told of {[*one]}"] if [*one] != [type] else []
        for told in (one, every):
            found += wrong_counts(told.get(type, TypeCounts()), counted)
        return found

    async def _queue(self) -> list[str]:
        jobs, type = self._drill.jobs, self._drill.type
        paused = await jobs.paused(type)
        found = [*wrong_queue(await jobs.queue_state(type), self._jobs, paused=paused)]
        oldest, first = await jobs.oldest_ready(type), oldest_ready(self._jobs)
        if (None if oldest is None else oldest.id) not in (first[1] if first is not None else [None]):
            found.append(f"{oldest} has been ready for longest, and must be {first}")
        running = in_order(self._jobs, "running")
        if (active := await jobs.active_ids(type)) != running:
            found.append(f"{active} run, and must be {running}")
        return found

    async def _times(self) -> list[str]:
        random, type, now = self._drill.random, self._drill.type, self._clock()
        found: list[str] = []
        resolution: Literal["minute", "hour"]
        for resolution in ("minute", "hour"):
            since = now - random.choice([0.0, 30.0, 61.0, 600.0, 8_000.0, 1e9])
            until = random.choice([None, now, now - 59.0, now + 7_200.0])
            told = await self._drill.jobs.throughput(type, since=since, until=until, resolution=resolution)
            tallies = self._drill.run.history.tallies
            end = self._clock() if until is None else until
            found += wrong_intervals(told, tallies, type, resolution, since, end, now)
        return found

    async def _pages(self) -> list[str]:
        random, type = self._drill.random, self._drill.type
        found: list[str] = []
        for state in random.sample([*_ORDERED, "succeeded", "canceled", None], 4):
            newest_first, limit = random.random() < 0.5, random.choice([1, 2, 5, 100])
            prefix = random.choice([None, None, "0", "many"])
            told = await self._page(type, limit, state=state, newest_first=newest_first, prefix=prefix)
            wanted = in_order(self._jobs, state) if state in _ORDERED else None
            if wanted is None:
                wanted = sorted(
                    (id for id, job in self._jobs.items() if state in (None, job.state, job.outcome)), key=str
                )
                if state == "scheduled":
                    continue
            wanted = [id for id in wanted if prefix is None or str(id).startswith(prefix)]
            if [job.id for job in told] != (wanted[::-1] if newest_first else wanted):
                found.append(
                    f"{[job.id for job in told]} are {state}, from {prefix!r} on, newest first: {newest_first}, "
                    f"and must be {wanted}"
                )
            for job in told:
                found += wrong_job(job, type, job.id, self._drill.run.history.newest(type, job.id))
        id = random.choice([*self._jobs])
        found += wrong_job(await self._drill.jobs.get(type, id), type, id, self._drill.run.history.newest(type, id))
        return found

    async def _page(self, type: JobType, limit: int, **terms: Any) -> list[Job]:
        jobs: list[Job] = []
        after: str | None = None
        while True:
            page = await self._drill.jobs.page(type, limit=limit, after=after, **terms)
            if len(page.jobs) > limit:
                self._drill.complain(f"a page of {limit} has {len(page.jobs)} jobs")
            jobs += [job for job in page.jobs if job.state is not JobState.UNREADABLE]
            if (after := page.next) is None:
                return jobs

    async def _failures(self) -> list[str]:
        jobs, failed = self._drill.jobs, self._failed()
        few = self._drill.random.choice([1, 2, 200])
        told = await newest_failures(cast("JobsService", _FewOnPage(jobs, few)), await jobs.counts())
        # Other types of the run have some, too.
        return [*self._wrong_failures(told, failed, few)] if failed == self._failed() else []

    def _failed(self) -> list[Key]:
        jobs = self._drill.run.history.model.jobs
        return [key for key, job in jobs.items() if job.outcome is Outcome.FAILED]

    def _wrong_failures(self, told: Failures, failed: list[Key], few: int) -> Iterator[str]:
        """Yield what is wrong with what is told of failures."""
        run, type = self._drill.run, self._drill.type
        mine = {id: self._jobs[id] for each, id in failed if each == type}
        if told.failed != len(failed):
            yield f"{told.failed} have failed, and must be {len(failed)}"
        if len({each for each, _ in failed}) > _MOST or not _pages_are_whole():
            return  # Not all are looked at.
        groups: dict[tuple[str, str], list[JobId]] = {}
        for id in sorted(mine, key=lambda id: -mine[id].place)[:few]:
            record = run.history.newest(type, id)
            error = None if record is None else _error_in(record.notes.error)
            groups.setdefault(("", "") if error is None else (error[0], _signature(error[1])), []).append(id)
        seen = {
            (each.error, each.message): each for each in told.groups if each.state == "failed" and type in each.jobs
        }
        found = {name: sorted(str(job.id) for job in each.jobs[type]) for name, each in seen.items()}
        if found != {name: sorted(map(str, ids)) for name, ids in groups.items()}:
            yield f"the failures are {found}, and must be {groups}"
            return
        for name, each in seen.items():
            if {*each.jobs} == {type}:
                times = [self._jobs[id].notes.history[0][1] for id in groups[name]]
                attempts = sum(self._jobs[id].notes.attempts for id in groups[name])
                told_of = (each.count, each.attempts, each.first, each.last)
                if told_of != (len(times), attempts, min(times), max(times)):
                    yield f"of the failures {name} is told {told_of}, not {(len(times), attempts, times)}"
        last = [each.last or 0.0 for each in told.groups]
        if last != sorted(last, reverse=True):
            yield f"the failures are in the order of {last}"
        if told.read != sum(each.count for each in told.groups) or told.damaged:
            yield f"{told.read} failures were read, and {told.damaged} could not"


def _pages_are_whole() -> bool:
    """Whether a page has all that were asked for, if there are so many."""
    return not (pages_are_small() or few_at_once_are_drawn())


def _error_in(raw: bytes | None) -> Any:
    """Return type, message and traceback of an error as it is stored."""
    return value_of(raw) if raw else None


def _signature(message: str) -> str:
    """Return one of the messages above without what differs."""
    for _, each in _ERRORS:
        begin, _, end = each.partition("{}")
        if message.startswith(begin) and message.endswith(end):
            return "no route to …" if "'" in each else each.replace("{}", "…")
    return message
