"""Decides about a job whose run has failed: the time of the next attempt, or final failure.

Pure functions without a clock and a store, after CouchDB's couch_replicator_scheduler (April 2017). Histories are
newest first, times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from jobs_service.errors import Discard, Retry, wait_of
from jobs_service.model import HistoryEvent, HistoryKind
from jobs_service.runner.options import HEALTH_THRESHOLD, HandlerOptions

_MAX_BACKOFF_EXPONENT: Final = 10
# In CouchDB a job is added once and is gone when it completes. Here it may be added again, and then begins anew.
_FRESH_STARTS: Final = frozenset({HistoryKind.ADDED, HistoryKind.FINISHED, HistoryKind.CANCELED})


class NextAttempt(NamedTuple):
    """Another run of a job that has crashed.

    Attributes:
        at: its earliest start, seconds since the epoch.
        crashes: crashes in a row, including the present one; they decide the next pause.
    """

    at: float
    crashes: int


def has_attempts_left(attempts: int, max_attempts: int | None, options: HandlerOptions) -> bool:
    """Return whether an accepted job may run.

    A job has no attempts left when its worker was lost in the last one: no worker was there to fail it.

    Args:
        attempts: runs so far, including the one that would begin now.
        max_attempts: the job's own limit; None for its handler's.
        options: the handler's.
    """
    most = max_attempts or options.max_attempts
    return most is None or attempts <= most


def decide(
    error: BaseException,
    options: HandlerOptions,
    history: Sequence[HistoryEvent],
    *,
    now: float,
    attempts: int,
    max_attempts: int | None,
    crashes_before: int,
    uniform: Callable[[float, float], float],
) -> NextAttempt | None:
    """Decide the next attempt of a job whose run has just failed.

    Args:
        error: the failure. A Discard is final; a Retry may set the pause before the next run.
        options: the handler's options: attempts, backoff and jitter.
        history: the history before this crash.
        now: time of the crash.
        attempts: runs so far, including this one.
        max_attempts: the job's own limit; None for its handler's.
        crashes_before: crashes in a row before this one, from the record's counter: a history is cut.
        uniform: draws a random number between two bounds.

    Returns:
        The next attempt; None when the job has failed for good.
    """
    if isinstance(error, Discard):
        return None
    most = max_attempts or options.max_attempts
    if most is not None and attempts >= most:
        return None
    crashes = crashes_in_a_row(history, now, crashes_before, options.health_threshold)
    if isinstance(error, Retry) and (after := wait_of(error)) is not None:
        return NextAttempt(now + after, crashes)
    at = now + backoff(crashes, options.backoff)
    if options.jitter:
        at += uniform(0.0, options.jitter) * (at - now)
    return NextAttempt(at, crashes)


def backoff(crashes: int, interval: float) -> float:
    """Return the pause after so many crashes in a row: doubled by each, at most 1024 intervals.

    Args:
        crashes: the count of `crashes_in_a_row`.
        interval: seconds to wait after the first.
    """
    if crashes < 1:
        return 0.0
    return float(2 ** min(crashes - 1, _MAX_BACKOFF_EXPONENT) * interval)


def crashes_in_a_row(history: Sequence[HistoryEvent], now: float, before: int, health_threshold: float) -> int:
    """Count the crash of a run that fails now, and the crashes in a row before it.

    A crash after a healthy run is the first of a new row. In CouchDB it does not count at all, so a job that always
    fails late is tried again at once, for ever.

    Args:
        history: the history before this crash.
        now: time of the crash.
        before: crashes in a row before this one, from the record's counter.
        health_threshold: seconds, see `consecutive_crashes`.
    """
    crashed = (HistoryEvent(HistoryKind.CRASHED, now), *history)
    known = consecutive_crashes(crashed, health_threshold)
    was_healthy = bool(history) and now - history[0].at > health_threshold
    return max(known, 1 if was_healthy else before + 1)


def consecutive_crashes(history: Sequence[HistoryEvent], health_threshold: float = HEALTH_THRESHOLD) -> int:
    """Count the crashes in a row with which a history begins.

    A crash counts when it came at most `health_threshold` seconds after the event before it. The row ends at a crash
    that came later, at a stop after a start, and at an add, resubmission or end of the job. The oldest event of
    a history never counts, because its predecessor is not known.

    Args:
        history: newest first.
        health_threshold: seconds.
    """
    crashes = 0
    for event, previous in pairwise(history):
        if event.kind is HistoryKind.CRASHED:
            if event.at - previous.at > health_threshold:
                break
            crashes += 1
        elif _ends_row(event, previous):
            break
    return crashes


def _ends_row(event: HistoryEvent, previous: HistoryEvent) -> bool:
    stopped_while_healthy = event.kind is HistoryKind.STOPPED and previous.kind is HistoryKind.STARTED
    return stopped_while_healthy or event.kind in _FRESH_STARTS
