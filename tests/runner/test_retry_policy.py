"""The scheduling functions: the seed's eunit tables and scheduler cases one to one, then what holds for any jobs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service.model import HistoryEvent, HistoryKind, JobId
from jobs_service.runner.retry_policy import (
    BACKOFF_INTERVAL,
    HEALTH_THRESHOLD,
    Candidate,
    Gauges,
    Plan,
    backoff,
    consecutive_crashes,
    excess,
    gauges,
    last_started,
    latest_crash,
    not_recently_crashed,
    pending_jobs,
    reschedule,
    retry_at,
    rotation,
)

History = tuple[HistoryEvent, ...]

NOW = 1_491_419_327.0
INTERVAL = 60.0
DEFAULT_MAX_JOBS = 500
DEFAULT_MAX_CHURN = 20
DEFAULT_MAX_HISTORY = 20


def crashed(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.CRASHED, at, "some_reason")


def started(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.STARTED, at)


def stopped(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.STOPPED, at)


def added(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.ADDED, at)


def lost(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.LOST, at)


def finished(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.FINISHED, at)


def canceled(at: float = 0.0) -> HistoryEvent:
    return HistoryEvent(HistoryKind.CANCELED, at)


def waits(number: int) -> History:
    return stopped(number + 1), started(number), added()


def runs(number: int) -> History:
    return started(number), added()


def continuous(number: int) -> Candidate:
    return Candidate(str(number), waits(number), continuous=True, running=False)


def continuous_running(number: int) -> Candidate:
    return Candidate(str(number), runs(number), continuous=True, running=True)


def oneshot(number: int) -> Candidate:
    return Candidate(str(number), waits(number), continuous=False, running=False)


def oneshot_running(number: int) -> Candidate:
    return Candidate(str(number), runs(number), continuous=False, running=True)


class Table:
    """The seed's table of jobs: plans are carried out on it, one interval after the other, as its server does."""

    def __init__(self, jobs: Iterable[Candidate]) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.now = NOW

    def reschedule(self, slots: int, max_churn: int = DEFAULT_MAX_CHURN) -> Plan:
        plan = reschedule(self.jobs.values(), slots, max_churn, self.now)
        for job_id in plan.stop:
            assert self.jobs[job_id].running
            self._record(job_id, stopped(self.now), running=False)
        for job_id in plan.start:
            assert not self.jobs[job_id].running
            self._record(job_id, started(self.now), running=True)
        self.now += INTERVAL
        return plan

    def crash(self, job_id: JobId, attempts: int, max_attempts: int | None) -> float | None:
        """Let a running job crash; returns when it may start again, None when it is over and has left the table."""
        again = retry_at(self.jobs[job_id].history, self.now, attempts, max_attempts)
        if again is None:
            del self.jobs[job_id]
        else:
            self._record(job_id, crashed(self.now), running=False)
        return again

    def running(self) -> list[JobId]:
        return sorted(job.id for job in self.jobs.values() if job.running)

    def stopped(self) -> list[JobId]:
        return sorted(job.id for job in self.jobs.values() if not job.running)

    def run_stop_count(self) -> tuple[int, int]:
        return len(self.running()), len(self.stopped())

    def oneshot_run_stop_count(self) -> tuple[int, int]:
        count = Counter(job.running for job in self.jobs.values() if not job.continuous)
        return count[True], count[False]

    def _record(self, job_id: JobId, event: HistoryEvent, running: bool) -> None:
        job = self.jobs[job_id]
        self.jobs[job_id] = replace(job, history=(event, *job.history)[:DEFAULT_MAX_HISTORY], running=running)


# The seed's eunit tables.


@pytest.mark.parametrize(
    ("factor", "crashes"),
    [
        (1, 1),
        (2, 2),
        (4, 3),
        (8, 4),
        (16, 5),
        (32, 6),
        (64, 7),
        (128, 8),
        (256, 9),
        (512, 10),
        (1024, 11),
        (1024, 12),
    ],
)
def test_backoff_micros(factor: int, crashes: int) -> None:
    assert backoff(crashes) == factor * 30.0


@pytest.mark.parametrize(
    ("crashes", "history"),
    [
        (0, ()),
        (0, (added(),)),
        (0, (stopped(),)),
        (0, (crashed(),)),
        (1, (crashed(), added())),
        (1, (crashed(), crashed())),
        (1, (crashed(), stopped())),
        (3, (crashed(), crashed(), crashed(), added())),
        (2, (crashed(), crashed(), stopped())),
        (1, (crashed(), started(), added())),
        (2, (crashed(3), started(2), crashed(1), started(0))),
        (0, (stopped(3), started(2), crashed(1), started(0))),
        (1, (crashed(3), started(2), stopped(1), started(0))),
        (0, (crashed(999), started(0))),
        (1, (crashed(999), started(998), crashed(997), started(0))),
    ],
)
def test_consecutive_crashes(crashes: int, history: History) -> None:
    assert consecutive_crashes(history, 120.0) == crashes


@pytest.mark.parametrize(
    ("crashes", "history", "threshold"),
    [
        (0, (crashed(11), started(0)), 10.0),
        (1, (crashed(10), started(0)), 10.0),
    ],
)
def test_consecutive_crashes_non_default_threshold(crashes: int, history: History, threshold: float) -> None:
    assert consecutive_crashes(history, threshold) == crashes


@pytest.mark.parametrize(
    ("seconds", "history"),
    [
        (0, (added(),)),
        (1, (crashed(1),)),
        (3, (crashed(3), started(2), crashed(1), started(0))),
        (1, (started(3), stopped(2), crashed(1), started(0))),
    ],
)
def test_latest_crash_timestamp(seconds: float, history: History) -> None:
    assert latest_crash(history) == seconds


@pytest.mark.parametrize(
    ("seconds", "history"),
    [
        (0, (added(),)),
        (0, (crashed(1),)),
        (1, (started(1),)),
        (1, (added(), started(1))),
        (2, (started(2), started(1))),
        (2, (crashed(3), started(2), started(1))),
    ],
)
def test_last_started(seconds: float, history: History) -> None:
    assert last_started(history) == seconds


def test_oldest_job_first() -> None:
    job0, job1, job2 = (
        Candidate(name, history, continuous=False, running=True)
        for name, history in [("0", (crashed(),)), ("1", (started(1),)), ("2", (started(2),))]
    )
    assert excess([], 0) == []
    assert excess([job1], 0) == [job1]
    assert excess([job2, job1], 0) == [job1, job2]
    assert excess([job2, job1, job0], 0) == [job0, job1, job2]


# The seed's scheduler cases.


def test_pending_jobs_simple() -> None:
    job1, job2 = oneshot(1), oneshot(2)
    jobs = [job2, job1]
    assert pending_jobs(jobs, 0, NOW) == []
    assert pending_jobs(jobs, 1, NOW) == [job1]
    assert pending_jobs(jobs, 2, NOW) == [job1, job2]
    assert pending_jobs(jobs, 3, NOW) == [job1, job2]


def test_pending_jobs_skip_crashed() -> None:
    job1 = replace(oneshot(1), history=(crashed(NOW), started(NOW), *waits(1)))
    job2, job3 = oneshot(2), oneshot(3)
    jobs = [job2, job1, job3]
    assert pending_jobs(jobs, 1, NOW) == [job2]
    assert pending_jobs(jobs, 2, NOW) == [job2, job3]
    assert pending_jobs(jobs, 3, NOW) == [job2, job3]


def test_one_job_starts() -> None:
    table = Table([oneshot(1)])
    assert table.run_stop_count() == (0, 1)
    table.reschedule(DEFAULT_MAX_JOBS)
    assert table.run_stop_count() == (1, 0)


def test_no_jobs_start_if_max_is_0() -> None:
    table = Table([oneshot(1)])
    table.reschedule(0)
    assert table.run_stop_count() == (0, 1)


def test_one_job_starts_if_max_is_1() -> None:
    table = Table([oneshot(1), oneshot(2)])
    table.reschedule(1)
    assert table.run_stop_count() == (1, 1)


def test_max_churn_does_not_throttle_initial_start() -> None:
    table = Table([oneshot(1), oneshot(2)])
    table.reschedule(DEFAULT_MAX_JOBS, 0)
    assert table.run_stop_count() == (2, 0)


def test_excess_oneshot_only_jobs() -> None:
    table = Table([oneshot_running(1), oneshot_running(2)])
    assert table.run_stop_count() == (2, 0)
    table.reschedule(1)
    assert table.run_stop_count() == (1, 1)
    table.reschedule(0)
    assert table.run_stop_count() == (0, 2)


def test_excess_continuous_only_jobs() -> None:
    table = Table([continuous_running(1), continuous_running(2)])
    assert table.run_stop_count() == (2, 0)
    table.reschedule(1)
    assert table.run_stop_count() == (1, 1)
    table.reschedule(0)
    assert table.run_stop_count() == (0, 2)


def test_excess_prefer_continuous_first() -> None:
    table = Table([continuous_running(1), oneshot_running(2), continuous_running(3)])
    assert table.run_stop_count() == (3, 0)
    assert table.oneshot_run_stop_count() == (1, 0)
    table.reschedule(2)
    assert table.run_stop_count() == (2, 1)
    assert table.oneshot_run_stop_count() == (1, 0)
    table.reschedule(1)
    assert table.oneshot_run_stop_count() == (1, 0)
    table.reschedule(0)
    assert table.oneshot_run_stop_count() == (0, 1)


def test_stop_oldest_first() -> None:
    table = Table([continuous_running(7), continuous_running(4), continuous_running(5)])
    table.reschedule(2)
    assert table.run_stop_count() == (2, 1)
    assert table.stopped() == ["4"]
    table.reschedule(1)
    assert table.running() == ["7"]


def test_start_oldest_first() -> None:
    table = Table([continuous(7), continuous(2), continuous(5)])
    table.reschedule(1)
    assert table.run_stop_count() == (1, 2)
    assert table.running() == ["2"]
    table.reschedule(2)
    assert table.stopped() == ["7"]


def test_dont_stop_if_nothing_pending() -> None:
    table = Table([continuous_running(1), continuous_running(2)])
    table.reschedule(2)
    assert table.run_stop_count() == (2, 0)


def test_max_churn_limits_number_of_rotated_jobs() -> None:
    table = Table([continuous(1), continuous_running(2), continuous(3), continuous_running(4)])
    table.reschedule(2, 1)
    assert table.stopped() == ["2", "3"]


def test_if_pending_less_than_running_start_all_pending() -> None:
    table = Table(
        [continuous(1), continuous_running(2), continuous(3), continuous_running(4), continuous_running(5)],
    )
    table.reschedule(3)
    assert table.running() == ["1", "2", "5"]


def test_running_less_than_pending_swap_all_running() -> None:
    table = Table(
        [continuous(1), continuous(2), continuous(3), continuous_running(4), continuous_running(5)],
    )
    table.reschedule(2)
    assert table.stopped() == ["3", "4", "5"]


def test_oneshot_dont_get_rotated() -> None:
    table = Table([oneshot_running(1), continuous(2)])
    table.reschedule(1)
    assert table.running() == ["1"]


def test_rotate_continuous_only_if_mixed() -> None:
    table = Table([continuous(1), oneshot_running(2), continuous_running(3)])
    table.reschedule(2)
    assert table.running() == ["1", "2"]


def test_oneshot_dont_get_starting_priority() -> None:
    table = Table([continuous(1), oneshot(2), continuous_running(3)])
    table.reschedule(1)
    assert table.running() == ["1"]


def test_oneshot_will_hog_the_scheduler() -> None:
    table = Table([oneshot_running(1), oneshot_running(2), oneshot(3), continuous(4)])
    table.reschedule(2)
    assert table.running() == ["1", "2"]


def test_if_excess_is_trimmed_rotation_doesnt_happen() -> None:
    table = Table([continuous(1), continuous_running(2), continuous_running(3)])
    table.reschedule(1)
    assert table.running() == ["3"]


def test_if_transient_job_crashes_it_gets_removed() -> None:
    table = Table([Candidate("job1", (added(),), continuous=True, running=True)])
    assert table.crash("job1", attempts=1, max_attempts=1) is None
    assert table.jobs == {}


def test_if_permanent_job_crashes_it_stays_in_ets() -> None:
    table = Table([Candidate("job1", (added(),), continuous=True, running=True)])
    assert table.crash("job1", attempts=1, max_attempts=None) is not None
    assert table.stopped() == ["job1"]
    assert table.jobs["job1"].history[0] == crashed(NOW)


# What the seed's cases leave open.


@pytest.mark.parametrize("crashes", [0, -1])
def test_a_job_without_crashes_has_no_backoff(crashes: int) -> None:
    assert backoff(crashes) == 0.0


@pytest.mark.parametrize("newest", [added(10), finished(10), canceled(10)])
def test_crashes_before_a_job_was_resubmitted_or_finished_do_not_count(newest: HistoryEvent) -> None:
    earlier = (crashed(9), started(8), crashed(7), started(6))
    assert consecutive_crashes(earlier) == 2
    assert consecutive_crashes((newest, *earlier)) == 0
    assert consecutive_crashes((crashed(12), started(11), newest, *earlier)) == 1
    assert not_recently_crashed((newest, *earlier), 10.0)


def test_a_lost_run_is_no_crash_and_ends_no_row_of_crashes() -> None:
    assert consecutive_crashes((lost(1), started(0))) == 0
    assert consecutive_crashes((crashed(5), started(4), lost(3), started(2), crashed(1), started(0))) == 2


@pytest.mark.parametrize(
    ("history", "may_start"),
    [
        ((), True),
        ((added(NOW),), True),
        ((added(NOW), crashed(NOW + 5), started(NOW + 4)), True),
        ((stopped(NOW), crashed(NOW), started(NOW)), True),
        ((crashed(NOW - 1), started(NOW - 2)), False),
        ((crashed(NOW - 29), started(NOW - 29)), False),
        ((crashed(NOW - 30), started(NOW - 30)), True),
        ((crashed(NOW - 59), started(NOW - 60), crashed(NOW - 90), started(NOW - 90)), False),
        ((crashed(NOW - 60), started(NOW - 60), crashed(NOW - 90), started(NOW - 90)), True),
        ((crashed(NOW), started(NOW - 120)), False),
        ((crashed(NOW), started(NOW - 121)), True),
        ((lost(NOW), started(NOW), crashed(NOW - 30), started(NOW - 30)), True),
    ],
)
def test_a_job_may_start_when_its_backoff_has_passed_or_it_was_stopped_or_added(
    history: History, may_start: bool
) -> None:
    assert not_recently_crashed(history, NOW) is may_start


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "over"),
    [(1, 1, True), (1, 2, False), (2, 2, True), (3, 2, True), (9, 10, False), (10, 10, True), (1000, None, False)],
)
def test_a_job_is_over_when_its_attempts_are_used_up(attempts: int, max_attempts: int | None, over: bool) -> None:
    again = retry_at(runs(1), NOW, attempts, max_attempts)
    assert (again is None) is over


def test_a_crashed_job_waits_longer_each_time_unless_it_ran_for_long() -> None:
    fresh: History = (started(NOW), added(NOW))
    assert retry_at(fresh, NOW + 1, 1, None) == NOW + 1 + 30
    again: History = (started(NOW + 31), crashed(NOW + 1), *fresh)
    assert retry_at(again, NOW + 32, 2, None) == NOW + 32 + 60
    assert retry_at(again, NOW + 151, 2, None) == NOW + 151 + 60
    assert retry_at(again, NOW + 152, 2, None) == NOW + 152 + 30
    assert retry_at(again, NOW + 32, 2, None, health_threshold=0.5) == NOW + 32 + 30
    assert retry_at(again, NOW + 32, 2, None, interval=1.0) == NOW + 32 + 2


def test_a_job_that_runs_takes_no_place_of_one_that_waits() -> None:
    long_running, waiting = oneshot_running(1), oneshot(5)
    assert pending_jobs([long_running, waiting], 1, NOW) == [waiting]
    assert reschedule([long_running, waiting], 2, 0, NOW) == Plan((), ("5",))


def test_jobs_started_at_the_same_time_are_taken_in_the_order_given() -> None:
    jobs = [Candidate(name, (added(),), continuous=False, running=False) for name in "cab"]
    assert [job.id for job in pending_jobs(jobs, 2, NOW)] == ["c", "a"]


def test_of_jobs_started_at_the_same_time_the_one_that_was_started_longer_ago_before_goes_first() -> None:
    often = Candidate("often", (stopped(9), started(8), stopped(7), started(6), added()), True, False)
    seldom = Candidate("seldom", (stopped(9), started(8), stopped(5), started(4), added()), True, False)
    assert pending_jobs([often, seldom], 1, NOW) == [seldom]
    assert excess([replace(often, running=True), replace(seldom, running=True)], 1) == [replace(seldom, running=True)]


def test_what_has_run_longest_is_stopped_first_also_after_the_clock_was_set_back() -> None:
    before = Candidate("before", (started(9),), True, True, since=1.0)
    after = Candidate("after", (started(2),), True, True, since=2.0)
    assert excess([after, before], 1) == [before]
    assert rotation([after, before], 1, 2, 1) == [before]


def test_what_waits_goes_before_what_gives_up_its_slot_when_both_started_at_the_same_time() -> None:
    jobs = [replace(continuous_running(1), id="runs"), replace(continuous(1), id="waits")]
    assert reschedule(jobs, 1, 1, NOW) == Plan(("runs",), ("waits",))


def test_nobody_gives_up_a_slot_to_others_unless_exactly_all_are_taken() -> None:
    running = [continuous_running(1), continuous_running(2)]
    assert rotation(running, 5, 1, 5) == []
    assert rotation(running, 5, 2, 5) == running
    assert rotation(running, 5, 3, 5) == []


def test_a_job_that_gives_up_its_slot_may_be_the_next_to_start() -> None:
    jobs = [continuous_running(1), continuous(2)]
    assert reschedule(jobs, 1, 1, NOW) == Plan(("1",), ("1",))
    table = Table(jobs)
    table.reschedule(1)
    assert table.reschedule(1) == Plan(("1",), ("2",))


def test_jobs_are_counted_by_state_with_the_average_seconds_since_their_newest_event() -> None:
    def job(running: bool, *history: HistoryEvent) -> Candidate:
        return Candidate("any", history, continuous=False, running=running)

    jobs = [
        job(False, added(NOW - 10)),
        job(False, stopped(NOW - 20), started(NOW - 500)),
        job(False, lost(NOW - 60), started(NOW - 70)),
        job(True, started(NOW - 5), crashed(NOW - 900)),
        job(True, started(NOW - 8)),
        job(False, crashed(NOW - 7), started(NOW - 8)),
    ]
    assert gauges(jobs, NOW) == Gauges(3, 2, 1, 30.0, 6.5, 7.0)


def test_gauges_of_no_jobs_are_zero_and_no_age_is_negative() -> None:
    assert gauges([], NOW) == Gauges(0, 0, 0, 0.0, 0.0, 0.0)
    jobs = [
        Candidate("ahead", (added(NOW + 3),), continuous=False, running=False),
        Candidate("unknown", (), continuous=False, running=False),
        Candidate("old", (added(NOW - 6),), continuous=False, running=False),
    ]
    assert gauges(jobs, NOW) == Gauges(3, 0, 0, 2.0, 0.0, 0.0)


@pytest.mark.unmeasured
def test_200_continuous_jobs_share_10_slots_fairly_for_10_hours() -> None:
    table = Table(Candidate(str(number), (added(NOW),), continuous=True, running=False) for number in range(200))
    intervals = Counter[JobId]()
    for _ in range(600):
        table.reschedule(10)
        intervals.update(table.running())
    assert len(intervals) == 200
    assert sum(intervals.values()) == 600 * 10
    assert max(intervals.values()) - min(intervals.values()) <= 2


def test_a_crashing_job_runs_a_few_times_in_10_hours_while_another_has_the_slot() -> None:
    table = Table([Candidate(name, (added(NOW),), continuous=True, running=False) for name in ("bad", "good")])
    intervals = Counter[JobId]()
    for _ in range(600):
        table.reschedule(1)
        if table.jobs["bad"].running:
            table.crash("bad", attempts=1, max_attempts=None)
            intervals["bad"] += 1
        intervals.update(table.running())
    # Backoffs of 30 s to 512 x 30 s, which is the most that a history of 20 events can tell, fill ten hours after 11.
    assert 10 <= intervals["bad"] <= 12
    assert intervals["good"] == 600 - intervals["bad"]


# What holds for any jobs.

gaps = st.sampled_from([0.0, 0.1, 1.0, 29.9, 30.0, 119.0, 120.0, 121.0, 1e5])
kinds = st.sampled_from([kind for kind in HistoryKind if kind is not HistoryKind.ADDED])


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any events after the job was added, up to NOW."""
    events = draw(st.lists(st.tuples(kinds, gaps), max_size=8))
    at = NOW - draw(gaps)
    history = []
    for kind, gap in events:
        history.append(HistoryEvent(kind, at))
        at -= gap
    return (*history, added(at))


@st.composite
def job_sets(draw: st.DrawFn) -> list[Candidate]:
    """Up to ten jobs; those that run have been started last."""
    jobs = []
    for number in range(draw(st.integers(0, 10))):
        running = draw(st.booleans())
        history = draw(histories())
        if running:
            history = (started(history[0].at), *history)
        jobs.append(Candidate(str(number), history, draw(st.booleans()), running))
    return jobs


def crashes_by_the_seed(history: list[HistoryEvent], threshold: float, count: int = 0) -> int:
    """The seed's clauses of consecutive_crashes/3 one by one."""
    match history:
        case []:
            return count
        case [HistoryEvent(kind=HistoryKind.CRASHED, at=crash), HistoryEvent(at=before) as previous, *rest]:
            return count if crash - before > threshold else crashes_by_the_seed([previous, *rest], threshold, count + 1)
        case [HistoryEvent(kind=HistoryKind.STOPPED), HistoryEvent(kind=HistoryKind.STARTED), *_]:
            return count
    return crashes_by_the_seed(history[1:], threshold, count)


@settings(deadline=None, max_examples=60)
@given(histories(), st.sampled_from([0.0, 1.0, 120.0]))
def test_crashes_are_counted_as_the_seed_counts_them(history: History, threshold: float) -> None:
    ends = {HistoryKind.FINISHED, HistoryKind.CANCELED}
    of_the_seed = [event for event in history if event.kind not in ends]
    assert consecutive_crashes(of_the_seed, threshold) == crashes_by_the_seed(of_the_seed, threshold)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2000), st.sampled_from([0.0, 0.1, 1.0, 30.0, 3600.0]))
def test_backoff_never_shrinks_doubles_at_most_and_has_a_limit(crashes: int, interval: float) -> None:
    wait = backoff(crashes, interval)
    more = backoff(crashes + 1, interval)
    assert wait <= more <= max(2 * wait, interval)
    assert more <= 1024 * interval


@settings(deadline=None, max_examples=60)
@given(histories(), st.floats(0.0, 1000.0), st.sampled_from([0.1, 1.0, 30.0]))
def test_a_crashed_job_may_start_from_the_time_of_its_retry_and_not_before(
    history: History, later: float, interval: float
) -> None:
    now = NOW + later
    again = retry_at(history, now, 1, None, interval=interval)
    assert again is not None
    assert again >= now
    after = (crashed(now), *history)
    assert not_recently_crashed(after, again, interval=interval)
    # The seed starts a job again at once that was healthy before it crashed; here that is the first crash of a row.
    if consecutive_crashes(after):
        assert not not_recently_crashed(after, math.nextafter(again, now), interval=interval)


@pytest.mark.unmeasured
@settings(deadline=None, max_examples=150)
@given(job_sets(), st.integers(0, 8), st.integers(0, 6))
def test_any_plan_fills_the_slots_and_does_no_more_than_it_must(
    jobs: list[Candidate], slots: int, max_churn: int
) -> None:
    by_id = {job.id: job for job in jobs}
    running = {job.id for job in jobs if job.running}
    waiting = set(by_id) - running
    may_start = {name for name in waiting if not_recently_crashed(by_id[name].history, NOW)}
    plan = reschedule(jobs, slots, max_churn, NOW)
    stop, start = set(plan.stop), set(plan.start)

    assert len(stop) == len(plan.stop)
    assert len(start) == len(plan.start)
    assert stop <= running
    assert start <= may_start | stop
    assert len(running - stop | start) <= slots
    if len(running) > slots:
        assert len(stop) == len(running) - slots
        assert not start
    elif len(running) < slots:
        assert not stop
        assert len(start) == min(slots - len(running), len(may_start))
    else:
        rotating = [name for name in running if by_id[name].continuous]
        assert len(stop) == len(start) == min(len(waiting), max_churn, len(rotating))


@pytest.mark.unmeasured
@settings(deadline=None, max_examples=100)
@given(job_sets(), st.integers(0, 8), st.integers(0, 6))
def test_any_plan_spares_one_shot_jobs_and_takes_those_whose_turn_it_is(
    jobs: list[Candidate], slots: int, max_churn: int
) -> None:
    by_id = {job.id: job for job in jobs}
    running = [job for job in jobs if job.running]
    plan = reschedule(jobs, slots, max_churn, NOW)
    stays = [job for job in running if job.id not in plan.stop]
    if any(not job.continuous for job in running if job.id in plan.stop):
        assert len(running) > slots
        assert not any(job.continuous for job in stays)
    for continuous_ones in (True, False):
        stops = [last_started(j.history) for j in running if j.id in plan.stop and j.continuous is continuous_ones]
        spared = [last_started(j.history) for j in stays if j.continuous is continuous_ones]
        assert max(stops, default=0.0) <= min(spared, default=math.inf)
    left = [
        job for job in jobs if not job.running and job.id not in plan.start and not_recently_crashed(job.history, NOW)
    ]
    order = [last_started(by_id[job_id].history) for job_id in plan.start]
    assert order == sorted(order)
    assert max(order, default=0.0) <= min((last_started(job.history) for job in left), default=math.inf)


@pytest.mark.unmeasured
@settings(deadline=None, max_examples=60)
@given(job_sets(), st.integers(0, 8), st.integers(0, 6))
def test_a_plan_stops_what_excess_and_rotation_choose(jobs: list[Candidate], slots: int, max_churn: int) -> None:
    running = [job for job in jobs if job.running]
    chosen = excess(running, slots) or rotation(running, len(jobs) - len(running), slots, max_churn)
    assert [job.id for job in chosen] == list(reschedule(jobs, slots, max_churn, NOW).stop)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(6, 20))
def test_continuous_jobs_have_equal_shares_to_within_two_intervals(jobs: int, slots: int, max_churn: int) -> None:
    table = Table(Candidate(str(number), (added(NOW),), continuous=True, running=False) for number in range(jobs))
    intervals = Counter(dict.fromkeys(table.jobs, 0))
    for _ in range(40):
        table.reschedule(slots, max_churn)
        assert len(table.running()) == min(jobs, slots)
        intervals.update(table.running())
    assert max(intervals.values()) - min(intervals.values()) <= 2


def test_the_defaults_are_those_of_the_seed() -> None:
    assert (HEALTH_THRESHOLD, BACKOFF_INTERVAL) == (120.0, 30.0)
