"""Workers that wait in line for jobs: fair, none asleep while there is a job, nothing left of a line that has emptied.

The queue here stands for a type in the store: taking from it and watching it is one step, as in one transaction.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import StoreError, StoreUnavailable
from jobs_service.layer.queue import EmptyQueue
from jobs_service.service.acceptor import WaitingWorkers
from jobs_service.store import Watch
from tests.virtual_time import in_virtual_time, run_virtual


class Queue:
    """Jobs, and watches that fire when one comes.

    Args:
        pause: seconds that an attempt takes, before and after its one step.

    Attributes:
        attempts: how often somebody has looked.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self.jobs: deque[int] = deque()
        self.attempts = 0
        self.failures: list[Exception] = []
        self.watches: set[Watch] = set()
        self._pause = pause

    async def attempt(self) -> int | EmptyQueue:
        self.attempts += 1
        await asyncio.sleep(self._pause)
        if self.failures:
            raise self.failures.pop()
        found: int | EmptyQueue
        if self.jobs:
            found = self.jobs.popleft()
        else:
            watch = Watch(b"queue")
            watch.attach(self.watches.discard)
            self.watches.add(watch)
            found = EmptyQueue(watch, None)
        try:
            await asyncio.sleep(self._pause)
        except asyncio.CancelledError:
            # Who has taken a job and goes away gives it back, as the service does.
            if isinstance(found, int):
                self.add(found)
            else:
                assert found.watch is not None
                found.watch.cancel()
            raise
        return found

    def add(self, *jobs: int) -> None:
        """Add jobs, and fire the watches as a commit does."""
        self.jobs.extend(jobs)
        for watch in list(self.watches):
            watch.fire()
        self.watches.clear()

    def lose_watches(self) -> None:
        """Fail the watches."""
        for watch in list(self.watches):
            watch.fire(StoreError("lost"))
        self.watches.clear()


class Workers:
    """Those who wait for a queue's jobs."""

    def __init__(self, queue: Queue, waiting: WaitingWorkers[int], key: Hashable = "line") -> None:
        self.queue = queue
        self.waiting = waiting
        self.key = key
        self.got: list[tuple[int, int]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def enter(self, count: int = 1) -> None:
        """Let more of them get in line, one after the other."""
        for _ in range(count):
            number = len(self.tasks)
            self.tasks.append(asyncio.create_task(self._work(number), name=f"worker {number}"))
            await settled()

    async def _work(self, number: int) -> None:
        self.got.append((number, await self.waiting.get(self.key, self.queue.attempt)))

    async def leave(self) -> None:
        """Cancel those who still wait."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settled() -> None:
    """Return when everybody has done what can be done without time passing."""
    await asyncio.sleep(0.001)


def lines(waiting: WaitingWorkers[int]) -> int:
    """Return how many lines there are."""
    return len(waiting._lines)


# one after the other


@in_virtual_time
async def test_those_who_came_first_are_served_first() -> None:
    queue, waiting = Queue(), WaitingWorkers[int]()
    workers = Workers(queue, waiting)
    await workers.enter(5)
    for job in range(5):
        queue.add(job)
        await settled()
    assert workers.got == [(number, number) for number in range(5)]
    assert lines(waiting) == 0


@in_virtual_time
async def test_only_the_first_in_line_watches_and_looks_again() -> None:
    queue, waiting = Queue(), WaitingWorkers[int]()
    workers = Workers(queue, waiting)
    await workers.enter(50)
    assert len(queue.watches) == 1
    before = queue.attempts
    queue.add(1)
    await settled()
    # The first one, and the two that it woke: where one job came there may be more.
    assert queue.attempts - before == 3
    assert len(queue.watches) == 1
    await workers.leave()
    assert (queue.watches, lines(waiting)) == (set(), 0)


# those who go away


@in_virtual_time
async def test_who_goes_just_as_their_turn_comes_passes_it_on() -> None:
    queue, waiting = Queue(), WaitingWorkers[int]()
    workers = Workers(queue, waiting)
    await workers.enter(4)
    queue.add(1, 2)
    while not workers.got:  # noqa: ASYNC110 - in the very turn of the loop in which the first one wakes the next two
        await asyncio.sleep(0)
    workers.tasks[1].cancel()
    workers.tasks[2].cancel()
    await settled()
    assert workers.got == [(0, 1), (3, 2)]
    assert lines(waiting) == 0


@in_virtual_time
async def test_one_whose_attempt_fails_passes_the_turn_on() -> None:
    queue, waiting = Queue(), WaitingWorkers[int]()
    workers = Workers(queue, waiting)
    await workers.enter(3)
    queue.failures.append(StoreUnavailable("away"))
    queue.add(1)
    await settled()
    assert isinstance(workers.tasks[0].exception(), StoreUnavailable)
    assert workers.got == [(1, 1)]
    await workers.leave()
    assert lines(waiting) == 0


# what wakes


# anything at any time


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "enter", "add", "add", "add two", "cancel", "lose", "fail", "pass"]),
            st.integers(0, 1 << 16),
        ),
        max_size=40,
    ),
    st.integers(0, 1 << 16),
)
def test_no_job_lies_there_while_somebody_waits(steps: list[tuple[str, int]], seed: int) -> None:
    async def scenario() -> None:
        choose = random.Random(seed)
        queue, waiting = Queue(pause=1.0), WaitingWorkers[int]()
        workers = Workers(queue, waiting)
        for job, (step, number) in enumerate(steps):
            if step == "enter":
                workers.tasks.append(asyncio.create_task(workers._work(len(workers.tasks))))
            elif step == "add":
                queue.add(2 * job)
            elif step == "add two":
                queue.add(2 * job, 2 * job + 1)
            elif step == "cancel" and workers.tasks:
                workers.tasks[number % len(workers.tasks)].cancel()
            elif step == "lose":
                queue.lose_watches()
            elif step == "fail":
                queue.failures.append(StoreUnavailable("away"))
            await asyncio.sleep(choose.choice([0, 0, 0.5, 1, 1.5, 3]))
        await asyncio.sleep(1000)
        queue.failures.clear()
        left = [task for task in workers.tasks if not task.done()]
        assert not (queue.jobs and left), f"{len(queue.jobs)} jobs and {len(left)} who wait"
        assert len({job for _, job in workers.got}) == len(workers.got)
        assert len(queue.watches) <= 1
        await workers.leave()
        assert lines(waiting) == 0
        assert queue.watches == set()

    run_virtual(scenario())
