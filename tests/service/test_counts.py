"""Counts, throughput and pages: what is known of a type without listing its jobs."""

from __future__ import annotations

import math
import time
from itertools import product
from typing import Any

import pytest

from jobs_service import Histogram, InvalidJob, JobsService, NewJob, Outcome, Totals, TypeCounts
from jobs_service.layer.counters import bucket_of
from jobs_service.service import queries
from tests.service.support import FAR_AWAY, T1, T2, accepted, new_jobs
from tests.stores import QUICKEST_AND_CLUSTER, one_of

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


async def one_of_each(jobs: JobsService) -> None:
    """Have a job in every state: s1 succeeded, f1 and f2 failed in this order, c1 canceled, r1 running, and so on."""
    await jobs.add_many(T1, new_jobs("s1", "f1", "f2", "c1", "r1", "q1", "q2"))
    await jobs.add(T1, "later", run_at=FAR_AWAY)
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FAILED):
        await (await accepted(jobs)).finish(outcome=outcome)
    worker = await accepted(jobs)
    await jobs.remove(T1, worker.id)
    await worker.finish()
    await accepted(jobs)


async def test_counts_say_how_many_jobs_are_in_which_state_and_what_has_happened(quiet: JobsService) -> None:
    await one_of_each(quiet)
    found = await quiet.counts()
    assert [*found] == [T1, T2]
    of_t1 = found[T1]
    states = (of_t1.ready, of_t1.scheduled, of_t1.running, of_t1.succeeded, of_t1.failed, of_t1.canceled)
    assert states == (2, 1, 1, 1, 2, 1)
    assert of_t1.jobs == 8
    assert of_t1.totals == Totals(added=8, started=5, succeeded=1, failed=2, canceled=1)
    assert (of_t1.waited.count, of_t1.ran.count) == (5, 4)
    assert found[T2] == TypeCounts()


async def test_a_job_that_is_given_back_counts_as_released(quiet: JobsService) -> None:
    await quiet.add(T1, "a")
    await (await accepted(quiet)).release()
    counts = (await quiet.counts(T1))[T1]
    assert counts.totals == Totals(added=1, started=1, released=1)
    assert (counts.ready, counts.running, counts.ran.count) == (1, 0, 1)


async def test_throughput_has_every_minute_also_those_in_which_nothing_happened(quiet: JobsService) -> None:
    begin = time.time()
    await one_of_each(quiet)
    found = await quiet.throughput(T1, since=begin - 120)
    assert [interval.seconds for interval in found] == [60] * len(found)
    assert [interval.begin for interval in found[:3]] == [(begin - 120) // 60 * 60 + 60 * k for k in range(3)]
    assert (found[0].totals, found[0].waited) == (Totals(), Histogram())
    assert sum(interval.totals.added for interval in found) == 8
    assert sum(interval.totals.failed for interval in found) == 2
    assert sum(interval.waited.count for interval in found) == 5
    assert sum(interval.ran.count for interval in found) == 4


async def test_events_of_many_types_are_read_together_and_are_the_same(quiet: JobsService) -> None:
    await one_of_each(quiet)
    await quiet.add(T2, "a")
    access, last = quiet._access, int(time.time() // 60)
    first = last - 7
    each = [await quiet.throughput(type, since=first * 60) for type in (T1, T2)]
    of_both = await queries.columns(access, [T1, T2], "minute", first, last)
    assert [columns for columns, _ in of_both] == [some[:8] for some in each]
    [(fours, every), _] = await queries.columns(access, [T1, T2], "minute", first, last, 4, times=False)
    assert [column.begin for column in fours] == [first * 60, (first + 4) * 60]
    assert Totals.together([column.totals for column in fours]) == every.totals
    assert (every.totals.added, every.waited.count, every.ran.count) == (8, 5, 4)
    all_types = await queries.together(access, [T1, T2], "minute", first, last)
    assert sum(interval.totals.added for interval in all_types) == 9
    [short, _] = await queries.totals(access, [T1, T2], "minute", last - 1, last)
    assert short == [interval.totals for interval in each[0][6:8]]


async def ids(jobs: JobsService, **keywords: Any) -> list[Any]:
    """Return the ids of all pages, in their order."""
    found: list[Any] = []
    after = None
    while True:
        page = await jobs.page(T1, after=after, **keywords)
        assert len(page.jobs) <= keywords.get("limit", 100)
        found += [job.id for job in page.jobs]
        if page.next is None:
            return found
        after = page.next


PAGES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["c1", "f1", "f2", "later", "q1", "q2", "r1", "s1"]),
    ({"prefix": "q"}, ["q1", "q2"]),
    ({"prefix": "nosuch"}, []),
    ({"state": "ready"}, ["q1", "q2"]),
    ({"state": "scheduled"}, ["later"]),
    ({"state": "pending"}, ["later", "q1", "q2"]),
    ({"state": "running"}, ["r1"]),
    ({"state": "succeeded"}, ["s1"]),
    ({"state": "failed"}, ["f1", "f2"]),
    ({"state": "failed", "prefix": "f2"}, ["f2"]),
    ({"state": "canceled"}, ["c1"]),
    ({"state": "finished"}, ["c1", "f1", "f2", "s1"]),
]


async def test_pages_have_all_jobs_once_from_either_end(quiet: JobsService) -> None:
    await one_of_each(quiet)
    for limit, (terms, expected) in product((1, 3, 100), PAGES):
        assert await ids(quiet, limit=limit, **terms) == expected
        assert await ids(quiet, limit=limit, newest_first=True, **terms) == expected[::-1]


TIMES: list[tuple[str | None, list[str]]] = [
    (None, ["r1", "c1", "f2", "f1", "s1", "later", "q2", "q1"]),
    ("pending", ["later", "q2", "q1"]),
    ("finished", ["c1", "f2", "f1", "s1"]),
    ("succeeded", ["s1"]),
    ("running", ["r1"]),
]


async def test_pages_by_time_have_all_jobs_once_in_the_order_of_their_last_events(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=3600, keep_failed=7200)
    await one_of_each(quiet)
    for limit, (state, newest) in product((1, 3, 100), TIMES):
        assert await ids(quiet, state=state, by_time=True, newest_first=True, limit=limit) == newest
        assert await ids(quiet, state=state, by_time=True, limit=limit) == newest[::-1]


async def test_pages_by_time_read_on_behind_many_jobs_in_other_states(quiet: JobsService) -> None:
    await quiet.set_retention(T1, keep=3600, keep_failed=3600)
    await quiet.add_many(T1, [NewJob(f"{number:03}") for number in range(50)])
    for number in range(50):
        outcome = Outcome.SUCCEEDED if number in (0, 49) else Outcome.FAILED
        await (await accepted(quiet)).finish(outcome=outcome)
    assert await ids(quiet, state="succeeded", by_time=True, newest_first=True, limit=1) == ["049", "000"]


async def test_a_page_by_time_refuses_a_position_that_is_none(quiet: JobsService) -> None:
    await one_of_each(quiet)
    first = await quiet.page(T1, by_time=True, limit=1)
    assert first.next is not None
    for after in (first.next[:-4], first.next[:4] + "_v7-"):
        with pytest.raises(InvalidJob, match="not `next` of a page"):
            await quiet.page(T1, by_time=True, after=after)


async def test_the_latest_failure_is_the_first_of_the_newest_whatever_its_id(quiet: JobsService) -> None:
    await quiet.add_many(T1, [NewJob("b", priority=1), NewJob("a", priority=2), NewJob("c", priority=3)])
    for _ in range(3):
        await (await accepted(quiet)).finish(outcome=Outcome.FAILED)
    assert await ids(quiet, state="failed", newest_first=True, limit=2) == ["c", "a", "b"]


def test_a_histogram_has_percentiles_and_a_mean() -> None:
    counts = [0] * 32
    for seconds in (0.001, 0.5, 1.0, 1.5, 100.0):
        counts[bucket_of(seconds)] += 1
    histogram = Histogram(tuple(counts), 103.001)
    assert histogram.count == 5
    assert histogram.mean == pytest.approx(20.6, abs=0.01)
    assert histogram.percentile(50) == pytest.approx(2**0.25)
    assert histogram.percentile(0) == 2**-10
    assert histogram.percentile(100) == 128.0
    even = Histogram(tuple(1000 if 8 <= bucket < 12 else 0 for bucket in range(32)))
    for percent in (10, 50, 95):
        assert even.percentile(percent) == pytest.approx(2 ** (-2 + 4 * percent / 100))
    assert Histogram().percentile(50) is None
    assert Histogram().mean is None


def test_every_time_is_within_the_bounds_of_its_bucket() -> None:
    bounds = Histogram.bounds()
    assert bounds[-1] == math.inf
    for seconds in (-1.0, 0.0, 0.0009, 2**-9, 0.75, 1.0, 59.9, 2.0**21, 1e12):
        bucket = bucket_of(seconds)
        assert seconds < bounds[bucket]
        assert bucket == 0 or seconds >= bounds[bucket - 1]
