"""Those who have a type to themselves: whatever they ask of the service has one right answer only."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from jobs_service import (
    Job,
    JobError,
    JobId,
    JobNotFound,
    JobsError,
    JobState,
    JobTransaction,
    JobType,
    NewJob,
    Outcome,
    RunningJob,
)
from jobs_service.store.base import Transaction
from jobs_service.testing import Process
from tests import reader
from tests.simulation.client import Client
from tests.simulation.model_job import READY, SCHEDULED, ModelJob
from tests.simulation.rows import data_key
from tests.simulation.sizes import pages_are_small
from tests.simulation.workloads.base import Workload

_TIMEOUT: Final = 600.0
_IDS: Final = ("a", "b", "c", "d", "e", "f")
_ROOMY: Final = 20_000
"""Bytes of a transaction that has room for all jobs of such a type."""

_MOMENT: Final = 1.0
_STATES: Final = (JobState.PENDING, JobState.RUNNING, JobState.FINISHED)


class Hermits(Workload):
    """Add jobs, run them, and ask for them, of a type that nobody else touches; one process each has one.

    Where something else has changed it all the same, such as a call whose caller was killed, nothing is said.
    """

    name = "hermits"
    weight: ClassVar[int] = 2

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._types: list[JobType] = [f"hermit of p{number}" for number in range(4)]
        self._there: dict[JobType, Process] = {}

    async def start(self, client: Client) -> None:
        for type in self._types:
            with contextlib.suppress(JobsError):
                await client.jobs.set_type_timeout(type, _TIMEOUT * (60 if self.run.long else 1))

    async def step(self, client: Client) -> None:
        type: JobType = f"hermit of {client.process.name}"
        there = self._there.get(type)
        if there is not None and there.running:
            return  # Another lane.
        self._there[type] = client.process
        acts = [self._add, self._add, self._add, self._work, self._work, self._work, self._wait_until_due]
        asks = [self._count, self._list, self._list, self._wait_for_the_finished]
        try:
            for _ in range(self.random.randint(2, 5)):
                await self.random.choice(acts)(client, type)
                await self.random.choice(asks)(client, type)
        finally:
            del self._there[type]

    async def settle(self, client: Client) -> None:
        """Leave nothing behind: nobody else ends these jobs."""
        while client.process.name == "p0":
            for type in self._types:
                there = self._there.get(type)
                for id in [] if there is not None and there.running else self._ids(type):
                    if self._open(type, id):
                        with contextlib.suppress(JobsError):
                            await client.remove(type, id, force=True)
            # Calls of the dead may still take effect.
            await asyncio.sleep(_MOMENT)

    # Acts

    async def _add(self, client: Client, type: JobType) -> None:
        """Add a few jobs, one by one, many at once, in a transaction or in a block."""
        how = self.random.choice(["one by one", "many", "transaction", "block", "block"])
        ids = self.random.sample(_IDS, self.random.randint(1, len(_IDS)))
        wanted = {id: self._options(client) for id in ids}
        calls = {id: client.begin("add", type, id, wanted[id]) for id in ids}
        data = {id: {"call": call.number} for id, call in calls.items()}
        if how == "one by one":
            for id, call in calls.items():
                work = client.jobs.add(type, id, data[id], if_exists="resubmit", **wanted[id])
                await client.call(call, work)
        elif how == "many":
            jobs = [NewJob(id, data[id], **wanted[id]) for id in ids]
            await client.many([*calls.values()], client.jobs.add_many(type, jobs, if_exists="resubmit"))
        elif how == "transaction" or self.run.machine is not None:  # blocks are for a cluster's transactions only

            async def add(tx: JobTransaction) -> None:
                for id in ids:
                    await tx.add(type, id, data[id], if_exists="resubmit", **wanted[id])

            await client.transact(calls.values(), add)
        else:

            async def function(transaction: Transaction) -> None:
                with client.jobs.within(transaction) as tx:
                    for id in ids:
                        tx.add(type, id, data[id], if_exists="resubmit", **wanted[id])

            await client.many([*calls.values()], client.jobs.store.transact(function))

    def _options(self, client: Client) -> dict[str, Any]:
        options: dict[str, Any] = {"priority": self.random.choice([-1, 0, 0, 1])}
        if self.random.random() < 0.3:
            options["run_at"] = client.process.clock.wall_time() + self.random.choice([-5.0, 2.0, 60.0])
        return options

    async def _work(self, client: Client, type: JobType) -> None:
        """Take as many jobs as are wanted and there, and go on with each."""
        limit, most = self.random.choice([1, 2, 3, 5]), self.random.choice([None, None, 0])
        packed = None if most is None else b"\x14"
        before = self._jobs(type)
        began = client.version
        # Clocks jump: what was made ready may be due only later by the clock of today.
        now = client.process.clock.wall_time() - _MOMENT
        ready = [
            id
            for id, job in before.items()
            if job.state is READY and (packed is None or job.priority <= packed) and (job.run_at or 0.0) <= now
        ]
        found = await client.accept(type, limit, max_priority=most, timeout=0)
        # Calls of other users may have the same transaction, and take a part of it; one that fails is halved.
        roomy = self.run.world.cluster.limits.transaction > _ROOMY and not self.run.sizes.large
        roomy = roomy and not pages_are_small() and not self.run.world.choices.faults
        wanted = min(limit, len(ready), client.jobs.settings.pending_batch)
        if len(found) < wanted and roomy and self._changed(type, began) <= {job.id for job in found}:
            self.run.complain(f"fewer: {client.process} asked for {limit} of {type!r} and got {found}; {ready} are due")
        for job in found:
            await self._go_on(client, job)

    async def _go_on(self, client: Client, job: RunningJob) -> None:
        """Do what a worker may do with a job; what was said is what is so then, and nothing else has changed."""
        what = self.random.choice(["progress", "progress", "update", "nothing"])
        if what == "progress":
            began, before, said = client.version, job.data, (self.random.randint(0, 9), 9, "so far")
            job = await job.progress(*said)
            shown = job.progress.value
            told = None if shown is None else (shown.done, shown.total, shown.message)
            await self._is_so(client, job, began, data=before, state=JobState.RUNNING)
            if told != said:
                self.run.complain(f"said: {client.process} has come {said} with {job!r}, which says {told}")
        elif what == "update":
            began = client.version
            job = await client.update(job)
            await self._is_so(client, job, began, data=job.data, state=JobState.RUNNING)
        known = self.run.history.model.jobs.get((job.type, job.id))
        if known is None or known.next is not None or known.cancel:
            # Somebody has asked for another run, or for its end.
            await client.finish(job)
            return
        began, data = client.version, job.data
        call = client.begin("finish", job.type, job.id)
        call.locks = (job.lock,)
        end = self.random.choice(["result", "error", "with", "with data", "release", "drop"])
        value = self.random.choice([{"answer": call.number}, [1, 2], "yes", 0, False])
        if end == "result":
            await client.call(call, job.finish({"call": call.number}, result=value))
            await self._is_so(client, job, began, data={"call": call.number}, result=value, outcome=Outcome.SUCCEEDED)
        elif end == "error":
            error = JobError("Wrong", f"number {call.number}")
            await client.call(call, job.finish({"call": call.number}, outcome=Outcome.FAILED, error=error))
            await self._is_so(client, job, began, error=error, outcome=Outcome.FAILED)
        elif end in ("with", "with data"):
            call.name = "finish with"  # It gives no data that would name the call.

            async def function(tx: JobTransaction) -> Any:
                return value

            await client.call(call, job.finish_with(function))
            await self._is_so(client, job, began, data=data, result=value, outcome=Outcome.SUCCEEDED)
        elif end == "release":
            call.name = "release"
            await client.call(call, job.release())
            await self._is_so(client, job, began, data=data, state=JobState.PENDING)
        else:
            call.name = "nothing"
            with contextlib.suppress(JobNotFound):
                await client.remove(job.type, job.id, force=True)

    async def _is_so(self, client: Client, job: Job, began: int, **wanted: Any) -> None:
        """Look whether a job is as it must be after one operation, and as its record says."""
        found = await client.jobs.get(job.type, job.id)
        states = [state for state in self.run.history.states(job.type, job.id) if state.version > began]
        if len(states) != 1:
            return  # Somebody else was here.
        for name, value in wanted.items():
            if _plain(getattr(found, name)) != _plain(value):
                self.run.complain(
                    f"said: {client.process} wanted {name}={value!r} of {job.type!r}/{job.id!r}, and sees {found!r} "
                    f"with {getattr(found, name)!r}"
                )
        self._compare(client, found)

    async def _wait_until_due(self, client: Client, type: JobType) -> None:
        """Wait for a job that is due soon: it comes when it is due, also while nobody watches over its type."""
        if any(map(self._is_open, self._jobs(type).values())) or self.run.long:
            return
        unwatched = self.random.random() < 0.5
        due = client.process.clock.wall_time() + 2.0
        call = client.begin("add", type, "a", {"run_at": due})
        work = client.jobs.add(type, "a", {"call": call.number}, run_at=due, if_exists="resubmit")
        await client.call(call, work)
        if unwatched:
            await client.jobs.clear_type_timeout(type)
        time = self.run.world.loop.time
        began, version, ahead = time(), client.version, client.process.clock.ahead
        try:
            found = await client.accept(type, timeout=8.0)
            took = time() - began
            quick = self.run.quiet.quick_since() <= max(0.0, began - _MOMENT)
            jumped = client.process.clock.ahead != ahead
            alone = self._changed(type, version) <= {"a"} and not jumped
            if quick and alone and (not found or took > 2.0 + _MOMENT):
                self.run.complain(
                    f"told late: {client.process} waited {took:.3f} s for {type!r}/'a', due in 2: {found}"
                )
        finally:
            if unwatched:
                await client.jobs.set_type_timeout(type, _TIMEOUT)
        for job in found:
            await client.finish(job)

    # Questions

    async def _count(self, client: Client, type: JobType) -> None:
        now = client.process.clock.wall_time()
        pending = sum(job.pending for job in self._jobs(type).values())
        limit = self.random.choice([None, 1, 3, max(pending - 1, 1), max(pending - 1, 1)])
        due_by = self.random.choice([None, None, now + 30.0])
        began = client.version
        counted = await client.jobs.pending_count(type, due_by=due_by, limit=limit)
        active = await client.jobs.active_ids(type)
        if self._changed(type, began):
            return
        jobs = self._jobs(type)
        # A job that a clock ahead of this one has made ready is due only when it is by this one.
        wanted = sum(
            job.state in (READY, SCHEDULED) and (due_by is None or (job.run_at or 0.0) <= due_by)
            for job in jobs.values()
        )
        wanted = wanted if limit is None else min(wanted, limit)
        # An unbounded answer is what is counted, and not all is.
        if counted != wanted:
            self.run.complain(
                f"count: {client.process} counted {counted} of {type!r} (limit={limit}, due_by={due_by}), not {wanted}"
            )
        running = {id for id, job in jobs.items() if job.lock is not None}
        if set(active) != running or len(active) != len(running):
            self.run.complain(f"active: {client.process} was told that {active} of {type!r} run, not {running}")

    async def _list(self, client: Client, type: JobType) -> None:
        state, size = self.random.choice([None, *_STATES]), self.random.choice([1, 2, 1000])
        began = client.version
        seen = [job async for job in client.jobs.list(type, state=state, page_size=size)]
        if self._changed(type, began):
            return
        wanted = [id for id, job in self._jobs(type).items() if state is None or _state(job) is state]
        wanted.sort(key=lambda id: data_key(type, id))
        if [(job.type, job.id) for job in seen] != [(type, id) for id in wanted]:
            self.run.complain(
                f"list: {client.process}, for {type!r} in state {state}, saw {[(job.type, job.id) for job in seen]}, "
                f"not {wanted}"
            )
            return
        for job in seen:
            self._compare(client, job)

    async def _wait_for_the_finished(self, client: Client, type: JobType) -> None:
        """A finished job will not change by itself: who waits for its next change is told at once."""
        if client.jobs._tree.root is None:
            return
        finished = [id for id, job in self._jobs(type).items() if _state(job) is JobState.FINISHED]
        if not finished:
            return
        id, began = self.random.choice(finished), client.version
        since = self.run.world.loop.time()
        try:
            event = await client.jobs.wait(type, id, timeout=4.0)
        except (TimeoutError, JobsError) as error:
            if self.run.quiet.quick_since() <= since and not self._changed(type, began):
                self.run.complain(f"wait: {client.process} waited for {type!r}/{id!r}, which is finished: {error!r}")
            return
        if not self._changed(type, began) and event.state is not JobState.FINISHED:
            self.run.complain(f"wait: {client.process} was told {event} of {type!r}/{id!r}, which is finished")

    # What is known

    def _jobs(self, type: JobType) -> dict[JobId, ModelJob]:
        jobs = self.run.history.model.jobs
        return {id: jobs[type, id] for id in _IDS if (type, id) in jobs}

    def _ids(self, type: JobType) -> list[JobId]:
        return [id for key, id in self.run.history.known() if key == type]

    def _open(self, type: JobType, id: JobId) -> bool:
        job = self.run.history.model.jobs.get((type, id))
        return job is not None and self._is_open(job)

    def _is_open(self, job: ModelJob) -> bool:
        return _state(job) is not JobState.FINISHED

    def _changed(self, type: JobType, began: int) -> set[JobId]:
        """Return the jobs that have changed since a version."""
        states = self.run.history.states
        return {id for id in self._ids(type) if states(type, id)[-1].version > began}

    def _compare(self, client: Client, found: Job) -> None:
        """A job that was read just now is what its record says."""
        job = self.run.history.model.jobs.get((found.type, found.id))
        if job is None:
            return
        told = job.notes
        shown = found.progress
        for what, is_so, must_be in (
            ("state", found.state, _state(job)),
            ("data", found.data, reader.value_of(job.data)),
            ("outcome", found.outcome, job.outcome),
            ("attempts", found.attempts, told.attempts),
            ("result", found.result, reader.value_of(told.result or b"")),
            ("error", _plain(found.error), reader.value_of(told.error or b"")),
            ("progress", _said(shown), (reader.value_of(told.progress or b"") or [])[:3]),
            ("run_at", found.run_at, None if job.run_at is None else datetime.fromtimestamp(job.run_at, UTC)),
        ):
            if is_so != must_be:
                self.run.complain(f"look: {client.process} saw {what} {is_so!r} of {found!r}, which is {must_be!r}")


def _state(job: ModelJob) -> JobState:
    return JobState.PENDING if job.pending else JobState(job.state)


def _plain(value: Any) -> Any:
    return [value.type, value.message, value.traceback] if isinstance(value, JobError) else value


def _said(progress: Any) -> list[Any]:
    return [progress.done, progress.total, progress.message] if progress else []
