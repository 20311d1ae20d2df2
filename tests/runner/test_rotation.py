"""Rotation and excess by a runner in virtual time: CouchDB's scheduler cases, then fairness and what disturbs it.

CouchDB starts the job that was started longest ago. Here that is the front of the queue, and a job that gives up its
slot joins the queue at its end. So the tables of CouchDB's cases are set up with jobs that have waited the longer the
smaller their numbers are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from jobs_service import HistoryKind, JobsService, NewJob, Outcome, RunningJob, Snooze, WorkerConflict
from jobs_service.model import HistoryEvent
from jobs_service.runner.rotation import excess, rotation
from tests.runner.support import TYPE, add, moments, now, opened, running, stopped, story
from tests.virtual_time import in_virtual_time

INTERVAL = 60.0
DEFAULT_MAX_JOBS = 500
SETTLED = 1.0
"""Seconds after which everything has come of a change that comes of it without the next rotation."""
SETUP = 20.0
"""Seconds that setting up a table may take."""


class Stage:
    """Jobs that run until a test ends them, and a record of when each did.

    Attributes:
        jobs: the service.
        spans: of each job's runs, when they began and when they ended, in seconds; of the one that goes on the former.
    """

    def __init__(self, jobs: JobsService, **options: Any) -> None:
        self.jobs = jobs
        self.spans: dict[str, list[list[float]]] = defaultdict(list)
        self._acts: dict[str, asyncio.Future[Any]] = {}

        @jobs.handler(TYPE, **{"continuous": _is_continuous, "interval": INTERVAL, **options})
        async def work(job: RunningJob) -> Any:
            id = str(job.id)
            self.spans[id].append([now()])
            act = self._acts[id] = asyncio.get_running_loop().create_future()
            try:
                return await act
            finally:
                self.spans[id][-1].append(now())

    def end(self, id: str, error: Exception | None = None) -> None:
        """Have a job's run end, well or with an error."""
        if error is None:
            self._acts[id].set_result(None)
        else:
            self._acts[id].set_exception(error)

    def running(self) -> list[str]:
        """Return the jobs whose handlers run."""
        return sorted(id for id, spans in self.spans.items() if len(spans[-1]) == 1)

    def stops(self) -> int:
        """Return how often a run has ended."""
        return sum(len(span) == 2 for spans in self.spans.values() for span in spans)

    def seconds(self, id: str) -> float:
        """Return for how long a job has run in all."""
        return sum((span[1] if len(span) == 2 else now()) - span[0] for span in self.spans[id])

    async def stopped(self) -> list[str]:
        """Return the jobs that wait."""
        return sorted([str(job.id) async for job in self.jobs.list(TYPE, state="pending")])

    async def run_stop_count(self) -> tuple[int, int]:
        """Return how many jobs run, and how many wait."""
        return len(self.running()), len(await self.stopped())

    async def change(self, **options: Any) -> None:
        """Change options, and wait until what comes of it at once has come."""
        self.jobs.configure(TYPE, **options)
        await asyncio.sleep(SETTLED)

    async def rotate(self) -> None:
        """Wait until the next rotation is over."""
        await asyncio.sleep(INTERVAL - now() % INTERVAL + SETTLED)


def _is_continuous(job: RunningJob) -> bool:
    return bool(job.data == "continuous")


def continuous(number: int) -> tuple[int, str, bool]:
    return number, "continuous", False


def continuous_running(number: int) -> tuple[int, str, bool]:
    return number, "continuous", True


def oneshot(number: int) -> tuple[int, str, bool]:
    return number, "oneshot", False


def oneshot_running(number: int) -> tuple[int, str, bool]:
    return number, "oneshot", True


@asynccontextmanager
async def table(*candidates: tuple[int, str, bool], **options: Any) -> AsyncIterator[Stage]:
    """Have jobs run that were started at the seconds that their numbers say, and others wait that were started then.

    As many slots as jobs run are all there are.
    """
    async with opened() as jobs:
        stage = Stage(jobs, **{"slots": len(candidates), **options})
        async with running(jobs):
            await jobs.set_type_timeout(TYPE, 600)
            began = now()
            for number, data, _ in sorted(candidates):
                await asyncio.sleep(began + number - now())
                await jobs.add(TYPE, str(number), data)
            await asyncio.sleep(SETTLED)
            await jobs.pause(TYPE)
            for number, _, runs in sorted(candidates):
                if not runs:
                    stage.end(str(number), Snooze(0))
                    await asyncio.sleep(SETTLED)
            await stage.change(slots=sum(runs for _, _, runs in candidates))
            await jobs.resume(TYPE)
            await asyncio.sleep(SETTLED)
            assert now() < SETUP
            assert stage.running() == sorted(str(number) for number, _, runs in candidates if runs)
            assert await stage.stopped() == sorted(str(number) for number, _, runs in candidates if not runs)
            yield stage


# The order in which slots are given up


@dataclass(frozen=True)
class Holder:
    """A job that runs, as rotation sees it."""

    name: str
    continuous: bool = True
    at: float = 0.0
    starts: tuple[float, ...] = ()

    @property
    def history(self) -> list[HistoryEvent]:
        events = [(HistoryEvent(HistoryKind.STARTED, at), HistoryEvent(HistoryKind.ADDED, at)) for at in self.starts]
        return [event for pair in events for event in pair]


def test_what_runs_longest_is_stopped_first() -> None:
    never, first, second = Holder("never", False), Holder("first", False, 1.0), Holder("second", False, 2.0)
    assert excess([], 0) == []
    assert excess([first], 0) == [first]
    assert excess([first], 1) == excess([first], 2) == []
    assert excess([second, first], 0) == [first, second]
    assert excess([second, first, never], 0) == [never, first, second]
    assert excess([second, first, never], 2) == [never]


def test_continuous_jobs_are_stopped_before_others_and_only_they_take_turns() -> None:
    one_shot, continuous = Holder("one-shot", False, 1.0), Holder("continuous", True, 2.0)
    assert excess([one_shot, continuous], 1) == [continuous]
    assert rotation([one_shot, continuous]) == [continuous]


def test_what_has_run_longest_is_stopped_first_also_after_the_clock_was_set_back() -> None:
    before, after = Holder("before", at=1.0, starts=(9.0,)), Holder("after", at=2.0, starts=(2.0,))
    assert excess([after, before], 1) == [before]
    assert rotation([after, before]) == [before, after]


def test_of_jobs_started_at_the_same_time_the_one_that_was_started_longer_ago_before_goes_first() -> None:
    often, seldom = Holder("often", starts=(8.0, 6.0)), Holder("seldom", starts=(8.0, 4.0))
    assert excess([often, seldom], 1) == [seldom]
    assert rotation([often, seldom]) == [seldom, often]


# The cases of couch_replicator_scheduler.


@in_virtual_time
async def test_one_job_starts() -> None:
    async with table(oneshot(1)) as stage:
        await stage.change(slots=DEFAULT_MAX_JOBS)
        assert await stage.run_stop_count() == (1, 0)


@in_virtual_time
async def test_no_jobs_start_if_max_is_0() -> None:
    async with table(oneshot(1)) as stage:
        await stage.rotate()
        assert await stage.run_stop_count() == (0, 1)


@in_virtual_time
async def test_one_job_starts_if_max_is_1() -> None:
    async with table(oneshot(1), oneshot(2)) as stage:
        await stage.change(slots=1)
        assert await stage.run_stop_count() == (1, 1)
        assert stage.running() == ["1"]


@in_virtual_time
async def test_max_churn_does_not_throttle_initial_start() -> None:
    async with table(oneshot(1), oneshot(2)) as stage:
        await stage.change(slots=DEFAULT_MAX_JOBS, max_churn=0)
        assert await stage.run_stop_count() == (2, 0)


@in_virtual_time
async def test_excess_oneshot_only_jobs() -> None:
    async with table(oneshot_running(1), oneshot_running(2)) as stage:
        await stage.change(slots=1)
        assert await stage.run_stop_count() == (1, 1)
        await stage.change(slots=0)
        assert await stage.run_stop_count() == (0, 2)


@in_virtual_time
async def test_excess_continuous_only_jobs() -> None:
    async with table(continuous_running(1), continuous_running(2)) as stage:
        await stage.change(slots=1)
        assert await stage.run_stop_count() == (1, 1)
        await stage.change(slots=0)
        assert await stage.run_stop_count() == (0, 2)


@in_virtual_time
async def test_excess_prefer_continuous_first() -> None:
    async with table(continuous_running(1), oneshot_running(2), continuous_running(3)) as stage:
        await stage.change(slots=2)
        assert stage.running() == ["2", "3"]
        await stage.change(slots=1)
        assert stage.running() == ["2"]
        await stage.change(slots=0)
        assert stage.running() == []


@in_virtual_time
async def test_stop_oldest_first() -> None:
    async with table(continuous_running(7), continuous_running(4), continuous_running(5)) as stage:
        await stage.change(slots=2)
        assert await stage.stopped() == ["4"]
        await stage.change(slots=1)
        assert stage.running() == ["7"]


@in_virtual_time
async def test_start_oldest_first() -> None:
    async with table(continuous(7), continuous(2), continuous(5)) as stage:
        await stage.change(slots=1)
        assert stage.running() == ["2"]
        await stage.change(slots=2)
        assert await stage.stopped() == ["7"]


@in_virtual_time
async def test_dont_stop_if_nothing_pending() -> None:
    async with table(continuous_running(1), continuous_running(2)) as stage:
        await stage.rotate()
        assert stage.running() == ["1", "2"]
        assert stage.stops() == 0


@in_virtual_time
async def test_max_churn_limits_number_of_rotated_jobs() -> None:
    jobs = [continuous(1), continuous_running(2), continuous(3), continuous_running(4)]
    async with table(*jobs, max_churn=1) as stage:
        await stage.rotate()
        assert await stage.stopped() == ["2", "3"]


@in_virtual_time
async def test_if_pending_less_than_running_start_all_pending() -> None:
    jobs = [continuous(1), continuous_running(2), continuous(3), continuous_running(4), continuous_running(5)]
    async with table(*jobs) as stage:
        await stage.rotate()
        # In CouchDB 2 takes its slot again before 3, which was started later but waits for longer.
        assert stage.running() == ["1", "3", "5"]


@in_virtual_time
async def test_running_less_than_pending_swap_all_running() -> None:
    jobs = [continuous(1), continuous(2), continuous(3), continuous_running(4), continuous_running(5)]
    async with table(*jobs) as stage:
        await stage.rotate()
        assert await stage.stopped() == ["3", "4", "5"]


@in_virtual_time
async def test_oneshot_dont_get_rotated() -> None:
    async with table(oneshot_running(1), continuous(2)) as stage:
        await stage.rotate()
        assert stage.running() == ["1"]
        assert len(stage.spans["1"]) == 1


@in_virtual_time
async def test_rotate_continuous_only_if_mixed() -> None:
    async with table(continuous(1), oneshot_running(2), continuous_running(3)) as stage:
        await stage.rotate()
        assert stage.running() == ["1", "2"]
        assert len(stage.spans["2"]) == 1


@in_virtual_time
async def test_oneshot_dont_get_starting_priority() -> None:
    async with table(continuous(1), oneshot(2), continuous_running(3)) as stage:
        await stage.rotate()
        assert stage.running() == ["1"]


@in_virtual_time
async def test_oneshot_will_hog_the_scheduler() -> None:
    async with table(oneshot_running(1), oneshot_running(2), oneshot(3), continuous(4)) as stage:
        for _ in range(10):
            await stage.rotate()
        assert stage.running() == ["1", "2"]
        assert len(stage.spans["1"]) == len(stage.spans["2"]) == 1


@in_virtual_time
async def test_a_continuous_job_does_not_give_way_to_jobs_of_a_higher_number_of_priority() -> None:
    async with opened() as jobs:
        stage = Stage(jobs, continuous=True, slots=1)
        async with running(jobs):
            await jobs.set_type_timeout(TYPE, INTERVAL)
            await jobs.add(TYPE, "first")
            await jobs.add(TYPE, "later", priority=5)
            await asyncio.sleep(5 * INTERVAL)
            assert stage.running() == ["first"]
            assert stage.stops() == 0


@in_virtual_time
async def test_if_excess_is_trimmed_rotation_doesnt_happen() -> None:
    async with table(continuous(1), continuous_running(2), continuous_running(3)) as stage:
        await stage.change(slots=1)
        assert stage.running() == ["3"]
        assert await stage.stopped() == ["1", "2"]


@in_virtual_time
async def test_if_transient_job_crashes_it_gets_removed() -> None:
    async with table(continuous_running(1), max_attempts=1) as stage:
        stage.end("1", ValueError("reason"))
        await asyncio.sleep(SETTLED)
        assert await stage.run_stop_count() == (0, 0)
        assert (await stage.jobs.get(TYPE, "1")).outcome is Outcome.FAILED


@in_virtual_time
async def test_if_permanent_job_crashes_it_stays_in_ets() -> None:
    async with table(continuous_running(1), max_attempts=None) as stage:
        stage.end("1", ValueError("reason"))
        await asyncio.sleep(SETTLED)
        assert await stage.stopped() == ["1"]
        job = await stage.jobs.get(TYPE, "1")
        assert job.history[0].kind is HistoryKind.CRASHED
        assert "reason" in job.history[0].detail


# Fairness


@asynccontextmanager
async def many(count: int, **options: Any) -> AsyncIterator[Stage]:
    """Have so many continuous jobs take turns."""
    async with opened() as jobs:
        stage = Stage(jobs, **{"slots": 10, "timeout": 3600, **options})
        async with running(jobs):
            await asyncio.sleep(SETTLED)
            await jobs.add_many(TYPE, [NewJob(str(number), "continuous") for number in range(count)])
            yield stage


def spread(stage: Stage, count: int) -> float:
    """Return the difference between the longest and the shortest total run time of that many jobs, in seconds."""
    totals = [stage.seconds(str(number)) for number in range(count)]
    assert min(totals) > 0
    return max(totals) - min(totals)


@pytest.mark.unmeasured
@in_virtual_time
async def test_in_ten_hours_two_hundred_jobs_have_equal_shares_of_ten_slots() -> None:
    async with many(200) as stage:
        for _ in range(10):
            await asyncio.sleep(3600)
            assert len(stage.running()) == 10
        assert spread(stage, 200) <= 2 * INTERVAL
        assert sum(stage.seconds(str(number)) for number in range(200)) >= 0.99 * 10 * 36_000


@pytest.mark.parametrize(("count", "slots", "max_churn"), [(11, 10, 20), (23, 10, 3), (7, 3, 1)])
@in_virtual_time
async def test_shares_are_equal_whatever_the_slots_and_the_churn(count: int, slots: int, max_churn: int) -> None:
    async with many(count, slots=slots, max_churn=max_churn) as stage:
        await asyncio.sleep(60 * count * INTERVAL / slots)
        # With less churn than slots a turn is longer than an interval, and jobs are in the middle of theirs.
        turn = INTERVAL * -(-slots // min(max_churn, slots))
        assert spread(stage, count) <= turn + INTERVAL


@pytest.mark.unmeasured
@in_virtual_time
async def test_jobs_that_crash_never_take_more_than_their_share() -> None:
    crashing = ["0", "1", "2"]

    async def crash(stage: Stage) -> None:
        while True:
            await asyncio.sleep(10)
            for id in {*crashing} & {*stage.running()}:
                stage.end(id, ValueError("again"))

    async with many(30, max_attempts=None, backoff=1) as stage:
        await asyncio.sleep(SETTLED)
        task = asyncio.create_task(crash(stage))
        await asyncio.sleep(2 * 3600)
        task.cancel()
        healthy = [stage.seconds(str(number)) for number in range(3, 30)]
        crashed = [stage.seconds(id) for id in crashing]
        assert min(healthy) > max(crashed) > 0
        assert max(healthy) - min(healthy) <= 2 * INTERVAL
        assert len(stage.spans["0"]) <= max(len(stage.spans[str(number)]) for number in range(3, 30)) + 1


@in_virtual_time
async def test_a_handler_that_ignores_its_stop_takes_a_slot_but_not_the_turns_of_the_others() -> None:
    released = asyncio.Event()
    ran: Counter[str] = Counter()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=3, continuous=True, grace=5, interval=INTERVAL)
        async def work(job: RunningJob) -> None:
            ran[str(job.id)] += 1
            if job.id == "deaf" and ran["deaf"] == 1:
                while not released.is_set():
                    try:
                        await released.wait()
                    except asyncio.CancelledError:
                        continue
                return
            await asyncio.Event().wait()

        async with running(jobs):
            await asyncio.sleep(SETTLED)
            ids = ["deaf", "a", "b", "c", "d"]
            await jobs.add_many(TYPE, [NewJob(id) for id in ids])
            await asyncio.sleep(20 * INTERVAL)
            # Two slots for five jobs, which the deaf one is among: it was given back.
            assert min(ran.values()) >= 7
            assert len(await jobs.active_ids(TYPE)) == 2
            jobs.configure(TYPE, slots=2)
            await asyncio.sleep(SETTLED)
            assert len(await jobs.active_ids(TYPE)) == 1
            released.set()
            await asyncio.sleep(SETTLED)
            assert len(await jobs.active_ids(TYPE)) == 2


def lingering(jobs: JobsService, type: str, seconds: float, **options: Any) -> list[object]:
    """Register a handler that goes on for so long after it was stopped; return the ids of those that were."""
    asked: list[object] = []

    @jobs.handler(type, **{"continuous": True, "grace": seconds + 10, "interval": INTERVAL, **options})
    async def work(job: RunningJob) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asked.append(job.id)
            await asyncio.sleep(seconds)

    return asked


@in_virtual_time
async def test_fewer_slots_stop_no_more_jobs_than_they_must_while_others_take_their_grace() -> None:
    async with opened() as jobs:
        asked = lingering(jobs, TYPE, 20, slots=6)
        async with running(jobs):
            await add(jobs, *"abcdef")
            await asyncio.sleep(SETTLED)
            jobs.configure(TYPE, slots=4)
            await asyncio.sleep(SETTLED)
            jobs.configure(TYPE, max_churn=3)
            await asyncio.sleep(SETTLED)
            assert sorted(map(str, asked)) == ["a", "b"]
            jobs.configure(TYPE, slots=3)
            await asyncio.sleep(30)
            assert sorted(map(str, asked)) == ["a", "b", "c"]


@in_virtual_time
async def test_a_rotation_stops_nobody_for_jobs_to_which_others_give_their_slots_already() -> None:
    async with opened() as jobs:
        asked = lingering(jobs, TYPE, 2.5 * INTERVAL, slots=3)
        async with running(jobs):
            await add(jobs, *"abc")
            await asyncio.sleep(SETTLED)
            await add(jobs, "d")
            await asyncio.sleep(3 * INTERVAL)
            assert asked == ["a"]
            await asyncio.sleep(INTERVAL)
            # Now a waits, which has ended.
            assert asked == ["a", "b"]


@in_virtual_time
async def test_a_rotation_of_the_cap_stops_nobody_for_jobs_to_which_others_give_their_places_already() -> None:
    async with opened() as jobs:
        asked = lingering(jobs, "first", 2.5 * INTERVAL, slots=5)
        lingering(jobs, "second", 0)
        async with running(jobs, max_jobs=3):
            await add(jobs, *"abc", type="first")
            await asyncio.sleep(SETTLED)
            await add(jobs, "d", type="second")
            await asyncio.sleep(3 * INTERVAL)
            assert asked == ["a"]


# Checkpoints


@in_virtual_time
async def test_what_a_stopped_handler_writes_within_its_grace_is_kept() -> None:
    seen: list[Any] = []
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1, continuous=True, grace=10)
        async def work(job: RunningJob) -> None:
            seen.append((job.id, job.data))
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(9)
                await job.update((job.data or 0) + 1)

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(SETTLED)
            await add(jobs, "b")
            await asyncio.sleep(3 * INTERVAL + 15)
            assert seen == [("a", None), ("b", None), ("a", 1), ("b", 1)]
            job = await jobs.get(TYPE, "a")
            assert story(job) == ["added", "started", "stopped", "started", "stopped"]
            # Its slot was its own until it had ended.
            rotated, ended = moments(job, HistoryKind.STOPPED)
            assert ended - rotated == 2 * INTERVAL
            assert moments(await jobs.get(TYPE, "b"), HistoryKind.STARTED)[0] == rotated
            assert job.attempts == 0


@in_virtual_time
async def test_what_a_stopped_handler_writes_after_its_grace_is_refused() -> None:
    refused = asyncio.Event()
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=1, continuous=True, grace=10)
        async def work(job: RunningJob) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                with pytest.raises(asyncio.CancelledError):  # once more, at the end of its grace
                    await asyncio.sleep(11)
                with pytest.raises(WorkerConflict):
                    await job.update("late")
                refused.set()

        async with running(jobs):
            await add(jobs, "a")
            await asyncio.sleep(SETTLED)
            await add(jobs, "b")
            await refused.wait()
            job = await jobs.get(TYPE, "a")
            assert job.data is None
            assert story(job)[:3] == ["added", "started", "stopped"]


@in_virtual_time
async def test_a_job_that_is_stopped_before_its_handler_has_begun_is_given_back() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE, slots=3, continuous=True)
        async def work() -> None:
            await asyncio.Event().wait()

        ids = ["a", "b", "c"]
        for turns in range(25):  # of the loop until it is stopped: in one of them the jobs are to begin next
            task = asyncio.create_task(jobs.run())
            await asyncio.sleep(SETTLED)
            await jobs.add_many(TYPE, [NewJob(id) for id in ids], if_exists="ignore")
            for _ in range(turns):
                await asyncio.sleep(0)
            await stopped(task)
            assert await jobs.active_ids(TYPE) == []
            assert await jobs.pending_count(TYPE) == 3
            for id in ids:
                await jobs.remove(TYPE, id)


# Changes


@in_virtual_time
async def test_another_interval_counts_from_the_last_rotation() -> None:
    async with table(continuous_running(1), continuous(2), interval=3600) as stage:
        await asyncio.sleep(600)
        await stage.change(interval=1200)
        assert stage.running() == ["1"]
        await asyncio.sleep(1200 - now() + SETTLED)
        assert stage.running() == ["2"]
        await stage.change(interval=100)
        await asyncio.sleep(100)
        assert stage.running() == ["1"]
        await asyncio.sleep(50)
        # Its time has been over for long: at once.
        await stage.change(interval=10)
        assert stage.running() == ["2"]


@in_virtual_time
async def test_other_changes_make_nobody_take_a_turn_before_its_time() -> None:
    async with table(continuous_running(1), continuous(2)) as stage:
        for _ in range(10):
            await stage.change(max_churn=5, max_history=7)
        assert stage.running() == ["1"]
        await stage.rotate()
        assert stage.running() == ["2"]


@in_virtual_time
async def test_max_churn_changes_from_the_next_rotation_on() -> None:
    async with table(*map(continuous_running, range(1, 5)), *map(continuous, range(5, 9)), max_churn=0) as stage:
        await stage.rotate()
        assert stage.stops() == 4  # those that gave their slots to the table's running ones
        for max_churn, more in [(1, 1), (3, 3), (0, 0), (20, 4)]:
            before = stage.stops()
            await stage.change(max_churn=max_churn)
            await stage.rotate()
            assert stage.stops() - before == more


@in_virtual_time
async def test_more_slots_than_jobs_end_the_turns_and_fewer_bring_them_back() -> None:
    async with many(6, slots=3) as stage:
        await stage.rotate()
        await stage.change(slots=6)
        before = stage.stops()
        for _ in range(3):
            await stage.rotate()
        assert stage.stops() == before
        await stage.change(slots=2)
        assert stage.stops() == before + 4
        ran = {*stage.running()}
        for _ in range(2):
            await stage.rotate()
            ran |= {*stage.running()}
        assert len(ran) == 6
