"""When a failed run is tried again: the tables of CouchDB's eunit tests one to one, then what holds for any history."""

from __future__ import annotations

from typing import Unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import Retry
from jobs_service.model import HistoryEvent, HistoryKind
from jobs_service.runner.options import HandlerKeywords, HandlerOptions, handler_options
from jobs_service.runner.retry_policy import NextAttempt, backoff, consecutive_crashes, decide

History = tuple[HistoryEvent, ...]

NOW = 1_491_419_327.0


def decided(
    history: History,
    now: float,
    attempts: int = 1,
    max_attempts: int | None = None,
    *,
    error: Exception | None = None,
    before: int = 0,
    options: HandlerOptions | None = None,
) -> NextAttempt | None:
    """Return what the policy decides; without jitter, unless the options say otherwise."""
    return decide(
        ValueError() if error is None else error,
        without_jitter() if options is None else options,
        history,
        now=now,
        attempts=attempts,
        max_attempts=max_attempts,
        crashes_before=before,
        uniform=lambda least, most: most,
    )


def without_jitter(**options: Unpack[HandlerKeywords]) -> HandlerOptions:
    """Return options of a handler that retries for ever."""
    merged: HandlerKeywords = {"max_attempts": None, "jitter": 0.0}
    merged.update(options)
    return handler_options(merged)


def retried_at(history: History, now: float, **options: Unpack[HandlerKeywords]) -> float:
    """Return when a job runs again that is tried again."""
    found = decided(history, now, options=without_jitter(**options))
    assert found is not None
    return found.at


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


def runs(number: int) -> History:
    return started(number), added()


# The tables of couch_replicator_scheduler's eunit tests.


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
    assert backoff(crashes, 30.0) == factor * 30.0


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


# What those tables leave open.


@pytest.mark.parametrize("newest", [added(10), finished(10), canceled(10)])
def test_crashes_before_a_job_was_resubmitted_or_finished_do_not_count(newest: HistoryEvent) -> None:
    earlier = (crashed(9), started(8), crashed(7), started(6))
    assert consecutive_crashes(earlier) == 2
    assert consecutive_crashes((newest, *earlier)) == 0
    assert consecutive_crashes((crashed(12), started(11), newest, *earlier)) == 1


def test_a_lost_run_is_no_crash_and_ends_no_row_of_crashes() -> None:
    assert consecutive_crashes((lost(1), started(0))) == 0
    assert consecutive_crashes((crashed(5), started(4), lost(3), started(2), crashed(1), started(0))) == 2


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "is_over"),
    [(1, 1, True), (1, 2, False), (2, 2, True), (3, 2, True), (9, 10, False), (10, 10, True), (1000, None, False)],
)
def test_a_job_has_failed_for_good_when_its_attempts_are_used_up(
    attempts: int, max_attempts: int | None, is_over: bool
) -> None:
    assert (decided(runs(1), NOW, attempts, max_attempts) is None) is is_over
    of_its_handler = HandlerOptions(max_attempts=max_attempts)
    assert (decided(runs(1), NOW, attempts, options=of_its_handler) is None) is is_over


def test_a_retry_with_a_time_comes_after_that_time_without_jitter_and_counts_as_a_crash() -> None:
    again = decided((started(NOW), added(NOW)), NOW + 1, error=Retry(after=7.0), before=3, options=HandlerOptions())
    assert again == NextAttempt(NOW + 8, 4)
    assert decided(runs(1), NOW, attempts=1, max_attempts=1, error=Retry(after=7.0)) is None
    assert decided((started(NOW),), NOW + 1, error=Retry()) == NextAttempt(NOW + 31, 1)


def test_a_crashed_job_waits_longer_each_time_unless_it_ran_for_long() -> None:
    fresh: History = (started(NOW), added(NOW))
    assert retried_at(fresh, NOW + 1) == NOW + 1 + 30
    again: History = (started(NOW + 31), crashed(NOW + 1), *fresh)
    assert retried_at(again, NOW + 32) == NOW + 32 + 60
    assert retried_at(again, NOW + 151) == NOW + 151 + 60
    assert retried_at(again, NOW + 152) == NOW + 152 + 30
    assert retried_at(again, NOW + 32, health_threshold=0.5) == NOW + 32 + 30
    assert retried_at(again, NOW + 32, backoff=1.0) == NOW + 32 + 2


# What holds for any history.

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


def crashes_by_couchdb(history: list[HistoryEvent], threshold: float, count: int = 0) -> int:
    """CouchDB's clauses of consecutive_crashes/3 one by one."""
    match history:
        case []:
            return count
        case [HistoryEvent(kind=HistoryKind.CRASHED, at=crash), HistoryEvent(at=before) as previous, *rest]:
            return count if crash - before > threshold else crashes_by_couchdb([previous, *rest], threshold, count + 1)
        case [HistoryEvent(kind=HistoryKind.STOPPED), HistoryEvent(kind=HistoryKind.STARTED), *_]:
            return count
    return crashes_by_couchdb(history[1:], threshold, count)


@settings(deadline=None, max_examples=60)
@given(histories(), st.sampled_from([0.0, 1.0, 120.0]))
def test_crashes_are_counted_as_couchdb_counts_them(history: History, threshold: float) -> None:
    ends = {HistoryKind.FINISHED, HistoryKind.CANCELED}
    of_couchdb = [event for event in history if event.kind not in ends]
    assert consecutive_crashes(of_couchdb, threshold) == crashes_by_couchdb(of_couchdb, threshold)


@settings(deadline=None, max_examples=60)
@given(histories(), st.floats(0.0, 1000.0), st.sampled_from([0.1, 1.0, 30.0]), st.sampled_from([0.0, 0.1, 1.0]))
def test_the_next_attempt_is_never_before_the_pause_nor_after_the_pause_with_its_jitter(
    history: History, later: float, interval: float, jitter: float
) -> None:
    now = NOW + later
    least = retried_at(history, now, backoff=interval)
    assert now + interval <= least <= now + 1024 * interval
    again = decided(history, now, options=without_jitter(backoff=interval, jitter=jitter))
    assert again is not None
    assert least <= again.at <= least + jitter * (least - now)
    assert again.crashes >= consecutive_crashes((crashed(now), *history))


def test_the_defaults_are_those_of_couchdb() -> None:
    assert (HandlerOptions().health_threshold, HandlerOptions().backoff) == (120.0, 30.0)
