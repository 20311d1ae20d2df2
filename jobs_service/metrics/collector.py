"""The custom collector: figures as metric families of Prometheus; docs/metrics.md lists their names and labels."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import fields
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as Collecting

import jobs_service
from jobs_service.metrics import figures
from jobs_service.metrics.figures import STATES, Figures
from jobs_service.metrics.type_labels import OTHERS, TypeLabels
from jobs_service.model.counts import Histogram, Totals
from jobs_service.service import JobsService
from jobs_service.supervision import Supervising

PREFIX: Final = "jobs_service_"
_PATIENCE: Final = 30.0
"""Seconds that a scrape on another thread waits for the store."""

_STORE_COUNTERS: Final = {
    "transactions": "Runs of transactions that were begun.",
    "commits": "Transactions that wrote something and took effect.",
    "retries": "Runs of transactions that repeated an earlier one.",
    "conflicts": "Commits that failed because others had written what they had read.",
}


class Collector(Collecting):
    """Metrics of one service, for a registry of prometheus_client.

    Args:
        jobs: the service.
        most_types: the number of types with series of their own.
        patience: seconds that a scrape on another thread waits for the store.
    """

    def __init__(self, jobs: JobsService, most_types: int, patience: float = _PATIENCE) -> None:
        self._jobs = jobs
        self._patience = patience
        self._labels = TypeLabels(most_types)
        self._figures: Figures | None = None

    async def refresh(self) -> None:
        """Read the figures from the store, for a scrape on the service's event loop, which cannot wait for them."""
        self._figures = await figures.read(self._jobs, self._labels)

    def describe(self) -> list[Metric]:
        """Return nothing, so that a registry need not read the store on registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; a call on another thread than the service's refreshes them first."""
        self._refresh_from_elsewhere()
        found = self._figures
        yield GaugeMetricFamily(
            f"{PREFIX}up", "Whether the store has answered the last look at it.", int(found is not None)
        )
        info = GaugeMetricFamily(f"{PREFIX}info", "Always 1.", labels=["version", "store"])
        info.add_metric([jobs_service.__version__, self._jobs.store.address.partition(":")[0]], 1)
        yield info
        yield from self._of_process()
        yield from self._of_store()
        if found is not None:
            yield from _of_types(found)
            yield from _of_replications(found)

    def _refresh_from_elsewhere(self) -> None:
        loop = self._jobs._lifecycle.loop
        if loop is None or not loop.is_running() or loop is _running_loop():
            return
        refreshing = self.refresh()
        try:
            asked = asyncio.run_coroutine_threadsafe(refreshing, loop)
        except RuntimeError:  # the loop was closed just now
            refreshing.close()
            self._figures = None
            return
        try:
            asked.result(self._patience)
        except (TimeoutError, CancelledError):  # neither the loop nor the store answers, or the loop ends just now
            # Otherwise each scrape would leave a pending refresh behind while the store is silent.
            asked.cancel()
            self._figures = None

    def _of_process(self) -> Iterator[Metric]:
        slots = _gauge("slots", "Jobs that the handlers of this process may run at the same time.", ["type"])
        busy = _gauge("busy_slots", "Jobs that the handlers of this process run.", ["type"])
        missed = _counter("heartbeats_missed", "Heartbeats that failed, or came a whole one late.", ["type"])
        known = {} if self._figures is None else self._figures.labels
        sums: dict[str, list[int]] = {}
        for type, use in self._jobs.slot_uses().items():
            own = sums.setdefault(known.get(type, OTHERS), [0, 0, 0])
            for place, value in enumerate(use):
                own[place] += value
        for label, (number, taken, late) in sums.items():
            slots.add_metric([label], number)
            busy.add_metric([label], taken)
            missed.add_metric([label], late)
        yield from (slots, busy, missed)
        restarts = _counter("restarts", "Parts of services in this process that failed and were started again.")
        restarts.add_metric([], Supervising.total_restarts)
        yield restarts

    def _of_store(self) -> Iterator[Metric]:
        store = self._jobs.store
        counts = store.metrics()
        for name, meaning in _STORE_COUNTERS.items():
            family = _counter(f"store_{name}", meaning)
            family.add_metric([], counts[name])
            yield family
        watches = _gauge("store_watches", "Watches that are alive in this process.")
        watches.add_metric([], counts["watches"])
        yield watches
        times = _histogram("store_commit_seconds", "How long commits of this process have taken.")
        times.add_metric([], _buckets(store.commit_times.bounds, store.commit_times.counts), store.commit_times.seconds)
        yield times


class Collected(Collecting):
    """Metrics that were collected earlier.

    Args:
        families: the metrics.
    """

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        """Return nothing: see Collector."""
        return []

    def collect(self) -> Sequence[Metric]:
        """Return the metrics."""
        return self._families


def _of_types(found: Figures) -> Iterator[Metric]:
    types = _gauge("types", "Types that exist or have jobs.")
    types.add_metric([], found.types)
    yield types
    jobs = _gauge("jobs", "Jobs by state.", ["type", "state"])
    events = _counter("events", "What happened to jobs, since the type was made.", ["type", "event"])
    waited = HistogramMetricFamily(
        f"{PREFIX}wait_seconds", "How long jobs had been due when they started.", labels=["type"]
    )
    ran = HistogramMetricFamily(f"{PREFIX}run_seconds", "How long runs took, however they ended.", labels=["type"])
    oldest = _gauge("oldest_ready_seconds", "For how long the job is ready that has been so for longest.", ["type"])
    paused = _gauge("paused", "Whether nobody accepts jobs of the type.", ["type"])
    for label, own in found.by_label.items():
        for state in STATES:
            jobs.add_metric([label, state], getattr(own.counts, state))
        for event in fields(Totals):
            events.add_metric([label, event.name], getattr(own.counts.totals, event.name))
        for family, histogram in ((waited, own.counts.waited), (ran, own.counts.ran)):
            family.add_metric([label], _buckets(Histogram.bounds(), histogram.counts), histogram.sum)
        if own.oldest_ready is not None and own.paused is not None:
            oldest.add_metric([label], own.oldest_ready)
            paused.add_metric([label], own.paused)
    yield from (jobs, events, waited, ran, oldest, paused)


def _of_replications(found: Figures) -> Iterator[Metric]:
    if not found.replications:
        return
    labels = ["id", "source", "target"]
    pending = _gauge("replication_changes_pending", "Changes of the source that are still to come.", labels)
    failing = _gauge("replication_failing", "Whether the last run ended with an error.", labels)
    written = _counter("replication_docs_written", "Documents that the target has taken.", labels)
    refused = _counter("replication_doc_write_failures", "Documents that the target has refused for good.", labels)
    for id, status in found.replications.items():
        values = [id, status.source, status.target]
        if status.pending is not None:
            pending.add_metric(values, status.pending)
        failing.add_metric(values, status.is_failing)
        written.add_metric(values, status.docs_written)
        refused.add_metric(values, status.doc_write_failures)
    yield from (pending, failing, written, refused)


def _gauge(name: str, meaning: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", meaning, labels=labels)


def _counter(name: str, meaning: str, labels: Sequence[str] = ()) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", meaning, labels=labels)


def _histogram(name: str, meaning: str, labels: Sequence[str] = ()) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"{PREFIX}{name}", meaning, labels=labels)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets of a histogram in Prometheus' form: each bucket includes the counts of the lower ones."""
    names = ["+Inf" if bound == math.inf else repr(bound) for bound in bounds]
    return [(name, float(count)) for name, count in zip(names, accumulate(counts), strict=True)]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
