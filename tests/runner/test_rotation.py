"""Rotation and excess by a runner in virtual time: CouchDB's scheduler cases, then fairness and what disturbs it.

CouchDB starts the job that was started longest ago. Here that is the front of the queue, and a job that gives up its
slot joins the queue at its end. So the tables of CouchDB's cases are set up with jobs that have waited the longer the
smaller their numbers are.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from jobs_service import HistoryKind, Outcome
from jobs_service.model import HistoryEvent
from jobs_service.runner.active_runs import excess, rotation
from tests.runner.rotating import INTERVAL, SETTLED, Stage, continuous, continuous_running, table
from tests.runner.support import TYPE, opened, running
from tests.virtual_time import in_virtual_time

DEFAULT_MAX_JOBS = 500


def oneshot(number: int) -> tuple[int, str, bool]:
    return number, "oneshot", False


def oneshot_running(number: int) -> tuple[int, str, bool]:
    return number, "oneshot", True


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


# The order in which slots are given up


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
async def test_no_job_stops_for_one_that_comes_after_another_that_stops() -> None:
    async with opened() as jobs:
        stage = Stage(jobs, continuous=True, slots=2)
        async with running(jobs):
            await jobs.set_type_timeout(TYPE, INTERVAL)
            for name, priority in [("first", 0), ("less urgent", 5), ("next", 0), ("later", 5)]:
                await jobs.add(TYPE, name, priority=priority)
                await asyncio.sleep(SETTLED)
            await stage.rotate()
            # `first` has stopped for `next`, and comes before `later`: it would run again at once.
            assert stage.running() == ["less urgent", "next"]
            assert stage.stops() == 1


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
