"""Those who do whatever a transaction can do, in any order, beside keys of their own that they read and write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import fdb.tuple

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
    NoTypeTimeout,
    Outcome,
    RecordDamaged,
    Removal,
    RunningJob,
    StoreError,
)
from jobs_service.service.transactions import WithinTransaction
from jobs_service.store.base import Transaction
from jobs_service.testing import SimulatedTransaction
from tests.simulation.calls import OK, STOP_AND_REMOVE, UNKNOWN, Call
from tests.simulation.client import MIXED, Client
from tests.simulation.complaints import noted
from tests.simulation.job_states import meanwhile
from tests.simulation.workloads.base import Workload

_COUNTER: Final = b"counter"
_ENTRIES: Final = b"entries/"
_ROUNDED: Final = 1e-5
"""Seconds by which a time that a job tells may differ from the one that is stored: it tells microseconds."""


@dataclass
class Composed:
    """What one run of a transaction function has seen.

    Attributes:
        number: what it has read in the counter.
        seen: what it was told of jobs before it changed any.
        taken: the jobs that it has accepted and not ended.
        locks: of all that it has accepted.
        begun: those jobs.
    """

    number: int = 0
    seen: dict[tuple[JobType, Any], Job | None] = field(default_factory=dict)
    taken: list[RunningJob] = field(default_factory=list)
    locks: tuple[bytes, ...] = ()
    begun: set[tuple[JobType, Any]] = field(default_factory=set)


class Composers(Workload):
    """Count in a key of their own, and look at jobs, before a few operations of any kind; each sees those before it."""

    name = "composers"
    weight: ClassVar[int] = 3

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._counted: list[Call] = []

    async def step(self, client: Client) -> None:
        calls: list[Call] = []
        count = self.random.randint(1, 4)
        draws = [(self.random.random(), self.some_type(), self.some_id()) for _ in range(count)]
        counted, accepted = client.begin("count", draws[0][1], None), client.begin("accept", draws[0][1], None)
        last = Composed()
        options = [self.some_options(client) for _ in draws]

        async def compose(tx: JobTransaction) -> None:
            nonlocal last
            last = Composed()
            raw = await tx.kv.get(_COUNTER)
            last.number = 0 if raw is None else int(raw)
            for _, type, id in draws:
                last.seen[type, id] = await _get(tx, type, id)
            await self._look(client, tx, draws[0][1])
            for position, (draw, type, id) in enumerate(draws):
                if len(calls) <= position:
                    calls.append(client.begin("", type, id))
                try:
                    await self._operate(client, tx, draw, calls[position], options[position], last)
                except JobsError as error:
                    # What is wrong with a job is no reason to give up; with the store it is.
                    if isinstance(error, StoreError) and not isinstance(error, RecordDamaged):
                        raise
            for job in last.taken:
                # What becomes of them is the callers' business, who may forget them.
                if position % 2:
                    ended = await tx.finish(job, outcome=Outcome.FAILED, error=JobError("Composed", "as it should"))
                    if ended.state is JobState.FINISHED and ended.outcome is not Outcome.FAILED:
                        self.run.complain(f"transaction: {client.process} has ended {ended!r} as one that has failed")
            await self._look_again(client, tx, draws[0][1], {id for type, id in last.begun if type == draws[0][1]})
            tx.kv[_COUNTER] = str(last.number + 1).encode()
            tx.kv[_ENTRIES + str(counted.number).encode()] = raw or b"0"

        await client.transact([counted, accepted], compose)
        accepted.locks = last.locks
        self._counted.append(counted)
        for key, job in last.seen.items():
            was_so = [
                None if each is None else (each.state, each.data, each.outcome)
                for each in meanwhile(self.run.history, key, counted.version)
            ]
            gone = job is None and (None in was_so or any(each and each[0] is JobState.REMOVED for each in was_so))
            if not gone and (job is None or (job.state, job.data, job.outcome) not in was_so):
                self.run.complain(f"transaction: {client.process} saw {job!r} of {key}, which was {was_so} meanwhile")

    async def _look(self, client: Client, tx: JobTransaction, type: JobType) -> None:
        """What a transaction sees of a type as a whole fits what it sees of its jobs."""
        listed = [job async for job in tx.list(type, page_size=self.random.choice([1, 1000]))]
        running = {job.id for job in listed if job.state is JobState.RUNNING}
        pending = sum(job.state is JobState.PENDING for job in listed)
        unreadable = any(job.state is JobState.UNREADABLE for job in listed) or self.run.is_damaged
        active, counted = await tx.active_ids(type), await tx.pending_count(type)
        at_most = await tx.pending_count(type, limit=1)
        due = await tx.pending_count(type, due_by=client.process.clock.wall_time() + 3.0)
        if not unreadable and (
            set(active) != running or counted != pending or at_most != min(1, pending) or due > pending
        ):
            self.run.complain(
                f"transaction: {client.process} sees {running} run and {pending} wait of {type!r}, "
                f"and was told {active}, {counted}, {at_most} and {due}"
            )
        state = self.random.choice([JobState.PENDING, JobState.RUNNING, JobState.FINISHED])
        if [job.id for job in await tx.list(type, state=state)] != [job.id for job in listed if job.state is state]:
            self.run.complain(f"transaction: {client.process} does not see all of {type!r} that are {state}")
        await tx.paused(type)
        if (type in await tx.types()) != (await _timeout(tx, type) is not None):
            self.run.complain(f"transaction: {client.process} sees {type!r} among the types, and no timeout")

    async def _look_again(self, client: Client, tx: JobTransaction, type: JobType, taken: set[JobId]) -> None:
        """What a transaction has done to the jobs of a type is in every list and count of them, once."""
        if self.run.is_damaged:
            return
        listed = await tx.list(type, page_size=self.random.choice([1, 2, 1000]))
        ids = [job.id for job in listed]
        if len(set(ids)) < len(ids):
            self.run.complain(f"transaction: {client.process} sees {ids} of {type!r}, some of them twice")
        for job in listed:
            found = await _get(tx, type, job.id)
            if found is None or _shown(found) != _shown(job):
                self.run.complain(f"transaction: {client.process} has {job!r} in a list, and sees {found!r}")
        state = self.random.choice([JobState.PENDING, JobState.RUNNING, JobState.FINISHED])
        wanted = [job.id for job in listed if job.state is state]
        if [job.id for job in await tx.list(type, state=state)] != wanted:
            self.run.complain(f"transaction: {client.process} is not told that {wanted} of {type!r} are {state}")
        due_by = client.process.clock.wall_time() + self.random.choice([-20.0, 3.0, 30.0])
        due, more = (len([job for job in listed if _is_due(job, due_by + off)]) for off in (-_ROUNDED, _ROUNDED))
        counted = await tx.pending_count(type, due_by=due_by)
        if not due <= counted <= more:
            self.run.complain(f"transaction: {client.process} has counted {counted} due of {type!r}, not {due}")
        active = await tx.active_ids(type)
        running = {job.id for job in listed if job.state is JobState.RUNNING}
        latest = taken & running
        if len(active) != len(running) or {*active[len(active) - len(latest) :]} != latest or {*active} != running:
            self.run.complain(
                f"transaction: {client.process} was told that {active} of {type!r} run, the longest silent first; "
                f"it are {running}, of which {latest} have just begun"
            )

    async def _operate(
        self, client: Client, tx: JobTransaction, draw: float, call: Call, options: dict[str, Any], seen: Composed
    ) -> None:
        type, id = call.type, call.id
        assert id is not None
        if draw < 0.25:
            call.name = "add"
            rule = ("error", "resubmit", "ignore")[int(draw * 1000) % 3]
            await self._is_seen(client, tx, await tx.add(type, id, client.data(call), if_exists=rule, **options))  # type: ignore[arg-type]
        elif draw < 0.35:
            call.name = "add"
            (added,) = await tx.add_many(type, [NewJob(id, client.data(call), **options)], if_exists="resubmit")
            await self._is_seen(client, tx, added)
        elif draw < 0.5:
            call.name = "resubmit"
            await self._is_seen(client, tx, await tx.resubmit(type, id, data=client.data(call), **options))
        elif draw < 0.6:
            call.name = STOP_AND_REMOVE  # within its time, as often as there were operations
            force = draw < 0.55
            removal = await tx.remove(type, id, force=force)
            found = await _get(tx, type, id)
            if (removal is Removal.REMOVED) != (found is None) or (force and found is not None):
                self.run.complain(f"transaction: {client.process} has removed {id!r} ({removal}), and sees {found!r}")
        elif draw < 0.63:
            kept = (0.0, 3.0)[int(draw * 10_000) % 2]
            await tx.set_retention(type, keep=None if draw < 0.61 else kept, keep_failed=None if draw < 0.62 else kept)
        elif draw < 0.66:
            await self._change_type(client, tx, type)
        else:
            await self._take(client, tx, draw, call, seen)

    async def _change_type(self, client: Client, tx: JobTransaction, type: JobType) -> None:
        """Pause and resume a type, and make it anew: each is seen at once, and nobody else sees any of it."""
        seconds = self.run.timeouts[type]
        await tx.pause(type)
        paused = await tx.paused(type)
        await tx.resume(type)
        resumed = not await tx.paused(type)
        await tx.clear_type_timeout(type)
        cleared = await _timeout(tx, type) is None and type not in await tx.types()
        await self._add_in_vain(client, tx, type)
        await tx.set_type_timeout(type, seconds)
        if not (paused and resumed and cleared and await _timeout(tx, type) == seconds):
            self.run.complain(f"transaction: {client.process} does not see what it does to {type!r}")

    async def _add_in_vain(self, client: Client, tx: JobTransaction, type: JobType) -> None:
        """Ask for several jobs of which the last cannot be added: the others are left as they are."""
        ids = self.random.sample(self.run.ids, min(2, len(self.run.ids)))
        before = [await _get(tx, type, id) for id in ids]
        jobs = [*(NewJob(id, "in vain", priority=2) for id in ids), NewJob("in vain")]
        with contextlib.suppress(NoTypeTimeout):
            await tx.add_many(type, jobs, if_exists="resubmit")
            self.run.complain(f"transaction: {client.process} has added jobs to {type!r}, which does not exist")
        after = [await _get(tx, type, id) for id in ids]
        if [job and _shown(job) for job in before] != [job and _shown(job) for job in after]:
            self.run.complain(f"transaction: {client.process} was refused, and sees {after}, which were {before}")

    async def _take(self, client: Client, tx: JobTransaction, draw: float, call: Call, seen: Composed) -> None:
        """Accept a job on any terms, and perhaps go on with it in the same transaction."""
        due_by = client.process.clock.wall_time() + 6.0 if int(draw * 100) % 2 else None
        priority, spread = (0, 1) if draw < 0.76 else (None, 2)
        call.name = "finish"
        if draw < 0.9:
            best = None if due_by is None or spread > 1 else await self._best(client, tx, call.type, priority, due_by)
            job = await tx.accept(call.type, max_priority=priority, due_by=due_by, spread=spread)
            if best is not None and (job is None or _packed(job) > best):
                self.run.complain(
                    f"transaction: {client.process} got {job!r} of {call.type!r}, and not one of {best!r}"
                )
        else:
            found = await tx.accept_many(call.type, 2, max_priority=1 if draw < 0.95 else None, due_by=due_by, spread=2)
            job = found.pop() if found else None
            seen.taken += found
            seen.begun |= {(each.type, each.id) for each in found}
            seen.locks += tuple(each.lock for each in found)
        if job is None:
            return
        seen.locks += (job.lock,)
        seen.begun.add((job.type, job.id))
        part = int(draw * 1000) % 5
        if part == 0:
            seen.taken.append(job)
        elif part == 1:
            call.name = "update"
            seen.taken.append(await tx.update(job, client.data(call)))
        elif part == 2:
            call.name = "worker resubmit"
            seen.taken.append(await tx.resubmit(job, data=client.data(call)))
        elif part == 3:
            await tx.release(job)
        else:
            await self._is_seen(client, tx, await tx.finish(job, client.data(call), result={"composed": True}))

    async def _best(self, client: Client, tx: JobTransaction, type: JobType, most: Any, due_by: float) -> bytes | None:
        """Return the least packed priority of the jobs that may be taken, None when there are none."""
        if self.run.is_damaged or await tx.paused(type):
            return None
        due = [job for job in await tx.list(type, state=JobState.PENDING) if _is_due(job, due_by - _ROUNDED)]
        if len([job for job in due if job.run_at is not None]) > client.process.settings.pending_batch:
            return None  # so many that have come due meanwhile are put into the queue at once, by their times
        return min((each for each in map(_packed, due) if each <= fdb.tuple.pack((most,))), default=None)

    async def _is_seen(self, client: Client, tx: JobTransaction, job: Job) -> None:
        """What an operation has returned is what the transaction sees of the job from then on."""
        found = await _get(tx, job.type, job.id)
        if not _is_so(job, found):
            self.run.complain(f"transaction: {client.process} has made {job!r}, and sees {found!r}")

    def check(self) -> Iterator[str]:
        """Every number was counted once: by those who were told so, and by nobody who was refused."""
        versions = self.run.world.cluster.versions
        raw = versions.get(_COUNTER)
        entries = {call.number: versions.get(_ENTRIES + str(call.number).encode()) for call in self.run.calls.all}
        numbers = sorted(int(entry) for entry in entries.values() if entry is not None)
        if numbers != list(range(int(raw or b"0"))):
            yield f"transaction: the counter is {raw!r}, and {numbers} were counted"
        for call in self._counted:
            if call.outcome == OK and entries[call.number] is None:
                yield f"transaction: {call} was answered, and has not counted"
            if call.outcome not in (OK, UNKNOWN) and entries[call.number] is not None:
                yield f"transaction: {call} was refused, and has counted"


class Plain(Workload):
    """Plain code with a transaction of its own, in which it does things to jobs in one block or two."""

    name = "plain"
    weight: ClassVar[int] = 2

    async def step(self, client: Client) -> None:
        blocks = [self._draw(client) for _ in range(self.random.choice([1, 1, 2]))]
        raises = self.random.random() < 0.2

        async def function(transaction: Transaction) -> None:
            assert isinstance(transaction, SimulatedTransaction)
            for number, block in enumerate(blocks):
                before = len(transaction.journal)
                try:
                    with client.jobs.within(transaction) as tx:
                        for call, options in block:
                            self._operate(client, tx, call, options)
                        if raises and not number:
                            raise _Unwanted
                except (JobsError, _Unwanted):
                    # Nothing of this block is done. A later one cannot read what an earlier one has changed.
                    del transaction.journal[before:]

        mixed = MIXED.set(True)
        try:
            await client.jobs.store.transact(function)
        finally:
            MIXED.reset(mixed)

    def _draw(self, client: Client) -> list[tuple[Call, dict[str, Any]]]:
        names = [self.random.choice(["add", "add", "resubmit", "finish"]) for _ in range(self.random.randint(1, 3))]
        return [(client.begin(name, self.some_type(), self.some_id()), self.some_options(client)) for name in names]

    def _operate(self, client: Client, tx: WithinTransaction, call: Call, options: dict[str, Any]) -> None:
        type, id = call.type, call.id
        assert id is not None
        if call.name == "add":
            made = tx.add(type, id, client.data(call), if_exists="resubmit", **options)
        elif call.name == "resubmit":
            made = tx.resubmit(type, id, data=client.data(call), **options)
        else:
            taken = tx.accept(type)
            if taken is None:
                return
            made = tx.finish(taken, client.data(call))
        try:
            found = tx.get(made.type, made.id)
        except JobNotFound:
            found = None
        if not _is_so(made, found):
            self.run.complain(f"within: {client.process} has made {made!r}, and sees {found!r}")


class _Unwanted(Exception):
    """Ends a block."""


async def _get(tx: JobTransaction, type: JobType, id: Any) -> Job | None:
    with contextlib.suppress(JobNotFound, RecordDamaged):
        return await tx.get(type, id)
    return None


async def _timeout(tx: JobTransaction, type: JobType) -> float | None:
    with contextlib.suppress(NoTypeTimeout):
        return await tx.get_type_timeout(type)
    return None


def _is_due(job: Job, due_by: float) -> bool:
    return job.state is JobState.PENDING and (job.run_at is None or job.run_at.timestamp() <= due_by)


def _packed(job: Job) -> bytes:
    packed: bytes = fdb.tuple.pack((job.priority,))
    return packed


def _is_so(made: Job, found: Job | None) -> bool:
    """Whether a job is as an operation has returned it; one that has left with its end is gone."""
    ended = noted(made._record.run_data)
    if found is None and ended.expires is not None and not ended.history:
        return True  # a record of the largest size has no room for the time at which it has ended
    left = ended.expires is not None and ended.history[:1] and ended.expires == ended.history[0][1]
    return bool(left) if found is None else not left and _shown(found) == _shown(made)


def _shown(job: Job) -> tuple[object, ...]:
    return job.state, job.data, job.priority, job.run_at, job.outcome, job.result, job.error, job.progress, job.attempts
