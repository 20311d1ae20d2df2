"""Blocks on transactions of the application: each sees what it has done before, and one that fails leaves nothing."""

from __future__ import annotations

from typing import Final

from jobs_service import JobId, JobsError, JobState, RunningJob
from jobs_service.errors import TransactionTooLarge
from jobs_service.service.transactions import WithinTransaction
from jobs_service.store.base import Transaction
from jobs_service.testing import SimulatedTransaction
from tests.simulation.calls import STOP_AND_REMOVE, Call
from tests.simulation.client import MIXED
from tests.simulation.drills.drill import Drill

_PART: Final = 2_500
"""Bytes of each of the jobs that are too much together."""

_LARGE: Final = 100_000
"""Bytes of a transaction that is not worth filling."""


async def do_in_blocks(drill: Drill) -> None:
    """Take, end, remove and add jobs in a block: after each step all lists and counts are what they must be."""
    if drill.run.machine is not None:  # blocks are for a cluster's transactions only
        return
    random = drill.random
    await drill.make_type()
    there: list[JobId] = [str(number) for number in range(1, random.randint(4, 9))]
    await drill.client.add_many(drill.type, there)
    steps = [(random.choice(["take", "take", "end", "remove", "add"]), random.randint(1, 4)) for _ in range(5)]
    page, limit = random.choice([1, 2, 3, 1000]), random.choice([1, 2, 5])
    calls = [drill.client.begin("add", drill.type, f"of step {number}") for number, _ in enumerate(steps)]
    accept = drill.client.begin("accept", drill.type, None)
    for id in (*there, *(call.id for call in calls)):
        drill.client.begin(STOP_AND_REMOVE, drill.type, id)

    async def function(transaction: Transaction) -> None:
        with drill.jobs.within(transaction) as tx:
            block = _Block(drill, tx, there, page, limit)
            for call, (step, count) in zip(calls, steps, strict=True):
                block.do(step, count, call)
                block.compare(step)
            accept.locks = tuple(block.locks)
        for call, (step, _) in zip(calls, steps, strict=True):
            call.name = "add" if step == "add" else "nothing"

    await drill.client.many([*calls, accept], drill.jobs.store.transact(function))


class _Block:
    """A block, and what its jobs must be.

    Args:
        drill: that it is part of.
        tx: the block.
        there: the ids of the jobs that wait when it begins, in their order.
        page: how many jobs a list reads at once.
        limit: at which counts stop.

    Attributes:
        locks: of all jobs that it has taken.
    """

    def __init__(self, drill: Drill, tx: WithinTransaction, there: list[JobId], page: int, limit: int) -> None:
        self.locks: list[bytes] = []
        self._drill = drill
        self._tx = tx
        self._page = page
        self._limit = limit
        self._pending = [*there]
        self._running: list[RunningJob] = []
        self._finished: list[JobId] = []

    def do(self, step: str, count: int, call: Call) -> None:
        """Do something to so many jobs."""
        tx, type = self._tx, self._drill.type
        if step == "take":
            taken = tx.accept_many(type, count)
            self.locks += [job.lock for job in taken]
            self._running += taken
            if [job.id for job in taken] != self._pending[:count]:
                self._complain(f"has taken {[job.id for job in taken]} of {self._pending}, and asked for {count}")
            self._pending = [id for id in self._pending if id not in {job.id for job in taken}]
        elif step == "end":
            for job in self._running[:count]:
                tx.finish(job)
            self._finished += [job.id for job in self._running[:count]]
            del self._running[:count]
        elif step == "remove":
            for id in self._pending[-count:]:
                tx.remove(type, id)
            del self._pending[-count:]
        else:
            tx.add(type, call.id or "", {"call": call.number})
            self._pending.append(call.id or "")

    def compare(self, step: str) -> None:
        """Look at the type in every way."""
        tx, type = self._tx, self._drill.type
        running = {job.id for job in self._running}
        for state, wanted in (
            (JobState.PENDING, {*self._pending}),
            (JobState.RUNNING, running),
            (JobState.FINISHED, {*self._finished}),
            (None, {*self._pending, *running, *self._finished}),
        ):
            found = [job.id for job in tx.list(type, state=state, page_size=self._page)]
            if len(found) != len(wanted) or {*found} != wanted:
                self._complain(f"sees {found} of state {state} after {step}, not {wanted}")
        counted, some = tx.pending_count(type), tx.pending_count(type, limit=self._limit)
        if (counted, some) != (len(self._pending), min(len(self._pending), self._limit)):
            self._complain(f"counts {counted}, and {some} up to {self._limit}, after {step}: {self._pending}")
        if {*tx.active_ids(type)} != running:
            self._complain(f"sees {tx.active_ids(type)} run after {step}, not {running}")

    def _complain(self, what: str) -> None:
        self._drill.complain(f"a block {what}")


class _Unwanted(Exception):
    """Ends a block."""


async def fail_in_a_block(drill: Drill) -> None:
    """Have a block fail, of itself or since it is too large at its end: nothing of it is done, another one is."""
    if drill.run.machine is not None:
        return
    random = drill.random
    await drill.make_type()
    await drill.add("there")
    large = min(drill.run.world.cluster.limits.transaction, _LARGE) // _PART + 2
    large = large if drill.run.world.cluster.limits.transaction < _LARGE else 0
    how = random.choice(["raises", "large", "large"] if large else ["raises"])
    fails_first = random.random() < 0.8
    call = drill.client.begin("add", drill.type, "good")

    async def function(transaction: Transaction) -> None:
        assert isinstance(transaction, SimulatedTransaction)
        if not fails_first:
            good(transaction)
        before = len(transaction.journal)
        try:
            with drill.jobs.within(transaction) as tx:
                if how == "large":
                    for number in range(large):
                        tx.add(drill.type, f"large {number}", "x" * _PART)
                else:
                    tx.add(drill.type, "bad")
                    if fails_first:
                        tx.accept(drill.type)
                    raise _Unwanted
            drill.complain("a block was to fail, and has not")
        except (TransactionTooLarge, _Unwanted):
            del transaction.journal[before:]
        if fails_first:
            good(transaction)

    def good(transaction: Transaction) -> None:
        try:
            with drill.jobs.within(transaction) as tx:
                tx.add(drill.type, "good", {"call": call.number})
        except JobsError as error:
            drill.complain(f"a block beside one that has failed ({how}) was refused: {error!r}")
            raise

    mixed = MIXED.set(True)
    try:
        await drill.client.many([call], drill.jobs.store.transact(function))
    finally:
        MIXED.reset(mixed)
    if {*drill.pending()} != {"there", "good"}:
        drill.complain(f"one block has failed ({how}), and one has not: {drill.all()}")
