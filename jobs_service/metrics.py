"""Metrics for Prometheus: counts and gauges of the jobs, the runners and the store of a service.

`await text(jobs)` returns the answer to a scrape; `collector(jobs)` is for a registry of the application's own.
docs/metrics.md names every metric. The module needs the extra `metrics`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from heapq import nlargest
from itertools import accumulate
from typing import Final
from weakref import WeakKeyDictionary

import jobs_service
from jobs_service import names
from jobs_service.blocking import running_loop
from jobs_service.errors import JobsError
from jobs_service.model import JobType
from jobs_service.model.process import OutboxInfo
from jobs_service.model.type_state import Histogram, QueueState, Totals, TypeCounts
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT, ReplicationStatus
from jobs_service.service import JobsService
from jobs_service.service.presence import relayed
from jobs_service.supervision import Supervising

try:
    from prometheus_client import CollectorRegistry, generate_latest, registry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
except ImportError:
    raise JobsError("metrics need prometheus-client: pip install 'jobs-service[metrics]'") from None

MOST_TYPES: Final = 200
"""Types with series of their own by default: each has about a hundred series."""

OTHERS: Final = "(other types)"
"""The label that all types without series of their own share."""

_LONGEST: Final = 120
"""Most characters of a label before its digest."""
_DIGEST_BYTES: Final = 8

STATES: Final = ("ready", "scheduled", "retrying", "running", "succeeded", "failed", "canceled")

_MOST_REPLICATIONS: Final = 1000
"""Most replications of each kind with series of their own."""

PREFIX: Final = "jobs_service_"

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `text`."""

_PATIENCE: Final = 30.0
"""Seconds that a scrape on another thread waits for the store."""

_STORE_COUNTERS: Final = {
    "transactions": "Runs of transactions that were begun.",
    "commits": "Transactions that wrote something and took effect.",
    "retries": "Runs of transactions that repeated an earlier one.",
    "conflicts": "Commits that failed because others had written what they had read.",
}

# The choice of types with series of their own must stay the same from scrape to scrape.
_collectors: WeakKeyDictionary[JobsService, Collector] = WeakKeyDictionary()


# For applications


async def text(jobs: JobsService) -> bytes:
    """Return all metrics of a service in Prometheus' text format.

    Args:
        jobs: an open service. If its store does not answer, `jobs_service_up` is 0, and metrics from the store are left
            out.
    """
    found = _collectors.get(jobs)
    if found is None:
        found = _collectors[jobs] = collector(jobs)
    await found.refresh()
    collected = CollectorRegistry(auto_describe=False)
    collected.register(Collected([*found.collect()]))
    # A megabyte of text takes a tenth of a second: the loop goes on meanwhile.
    return await asyncio.to_thread(generate_latest, collected)


def collector(jobs: JobsService, *, most_types: int = MOST_TYPES) -> Collector:
    """Return a collector for a registry of prometheus_client: `registry.register(metrics.collector(jobs))`.

    A scrape on another thread than the service's event loop, as by `start_http_server`, reads the store by itself. A
    scrape on the loop cannot wait for the store: call `await collector.refresh()` before `generate_latest`.

    Args:
        jobs: the service; it need not be open yet.
        most_types: the number of types with series of their own; all others share the series of "(other types)".
    """
    return Collector(jobs, most_types)


# Metrics


class Collector(registry.Collector):
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
        self._figures = await read(self._jobs, self._labels)

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
            yield from _of_outboxes(found.outboxes)

    def _refresh_from_elsewhere(self) -> None:
        loop = self._jobs._lifecycle.loop
        if loop is None or not loop.is_running() or loop is running_loop():
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
            for place, value in enumerate(use[:3]):
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


class Collected(registry.Collector):
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
    waited = _histogram("wait_seconds", "How long jobs had been due when they started.", ["type"])
    ran = _histogram("run_seconds", "How long runs took, however they ended.", ["type"])
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


def _of_outboxes(found: Sequence[OutboxInfo]) -> Iterator[Metric]:
    if not found:
        return
    waiting = _gauge("outbox_rows", "Rows of an outbox that wait to be moved into the store.", ["outbox"])
    oldest = _gauge("outbox_oldest_seconds", "For how long the oldest of them has waited.", ["outbox"])
    aside = _gauge("outbox_rows_set_aside", "Rows of an outbox that cannot be jobs.", ["outbox"])
    failing = _gauge("outbox_failing", "Whether nothing is moved, because of an error.", ["outbox"])
    for info in found:
        waiting.add_metric([info.name], info.rows)
        oldest.add_metric([info.name], info.oldest or 0.0)
        aside.add_metric([info.name], info.set_aside)
        failing.add_metric([info.name], bool(info.error))
    yield from (waiting, oldest, aside, failing)


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


# Figures from the store


@dataclass(frozen=True, slots=True)
class OfTypes:
    """Figures from the store for the types that share a label.

    Attributes:
        counts: the sum over these types.
        oldest_ready: seconds that the oldest ready job has waited; 0 without ready jobs, None if the queues cannot be
            read.
        paused: the number of paused types; None if the queues cannot be read.
    """

    counts: TypeCounts
    oldest_ready: float | None = None
    paused: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures from the store.

    Attributes:
        types: the number of types.
        by_label: the figures of types by label.
        labels: the label of each type.
        replications: the status of each replication by its job's id.
        outboxes: those whose rows processes move.
    """

    types: int = 0
    by_label: Mapping[str, OfTypes] = field(default_factory=dict)
    labels: Mapping[JobType, str] = field(default_factory=dict)
    replications: Mapping[str, ReplicationStatus] = field(default_factory=dict)
    outboxes: Sequence[OutboxInfo] = ()


async def read(jobs: JobsService, labels: TypeLabels) -> Figures | None:
    """Return the figures from the store; None if it cannot be read."""
    try:
        counted = await jobs.counts()
        # There may be very many types: the loop goes on meanwhile.
        chosen = await asyncio.to_thread(_chosen, labels, counted)
        own = [type for type, label in chosen.items() if label != OTHERS]
        queues = dict(zip(own, await jobs.queue_states(own), strict=True))
        replications = await _replications(jobs, counted)
        outboxes = relayed(await jobs.processes())
    except JobsError:
        return None
    now = jobs.wall_time()
    by_label = await asyncio.to_thread(_by_label, counted, chosen, queues, now)
    return Figures(len(counted), by_label, chosen, replications, outboxes)


def _chosen(labels: TypeLabels, counted: Mapping[JobType, TypeCounts]) -> dict[JobType, str]:
    return labels.choose(
        counted, {type: counts.ready + counts.retrying + counts.running for type, counts in counted.items()}
    )


def _by_label(
    counted: Mapping[JobType, TypeCounts],
    chosen: Mapping[JobType, str],
    queues: Mapping[JobType, QueueState],
    now: float,
) -> dict[str, OfTypes]:
    groups: dict[str, list[JobType]] = {}
    for type, label in chosen.items():
        groups.setdefault(label, []).append(type)
    found: dict[str, OfTypes] = {}
    for label, types in groups.items():
        own = [queues[type] for type in types if type in queues]
        counts = together([counted[type] for type in types])
        if not own:
            found[label] = OfTypes(counts)
            continue
        oldest = max((now - queue.ready_since for queue in own if queue.ready_since is not None), default=0.0)
        found[label] = OfTypes(counts, max(oldest, 0.0), sum(queue.paused for queue in own))
    return found


async def _replications(jobs: JobsService, counted: Mapping[JobType, TypeCounts]) -> dict[str, ReplicationStatus]:
    found: dict[str, ReplicationStatus] = {}
    for type in (CONTINUOUS, ONE_SHOT):
        if type in counted:
            async with aclosing(jobs.list(type, page_size=_MOST_REPLICATIONS)) as all_of_them:
                own = 0
                async for job in all_of_them:
                    if (status := ReplicationStatus.of(job)) is not None:
                        found[str(job.id)] = status
                    if (own := own + 1) == _MOST_REPLICATIONS:
                        break
    return found


def together(counts: Sequence[TypeCounts]) -> TypeCounts:
    """Return the sum of the counts of several types."""
    if len(counts) == 1:
        return counts[0]
    jobs = {state: sum(getattr(each, state) for each in counts) for state in STATES}
    return TypeCounts(
        **jobs,
        totals=Totals.together([each.totals for each in counts]),
        waited=Histogram.together([each.waited for each in counts]),
        ran=Histogram.together([each.ran for each in counts]),
    )


# Types with series of their own


class TypeLabels:
    """Chooses the types with series of their own; a type keeps them while it exists, so that counters never jump.

    Args:
        most: the number of types with series of their own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._labels: dict[JobType, str] = {}
        # Each of several simultaneous scrapes calls `choose` on a thread of its own.
        self._choosing = threading.Lock()

    def choose(self, types: Iterable[JobType], weights: Mapping[JobType, int]) -> dict[JobType, str]:
        """Return the label of each type.

        Args:
            types: the existing types. A type with series of its own keeps them; free places go to other types by
                descending weight, then in this order.
            weights: the weight of each type; 0 for types that are missing here.
        """
        with self._choosing:
            present = [*types]
            there = set(present)
            self._labels = {type: label for type, label in self._labels.items() if type in there}
            fresh = [type for type in present if type not in self._labels]
            room = self._most - len(self._labels)
            chosen = nlargest(room, fresh, key=lambda type: weights.get(type, 0)) if room > 0 else []
            self._labels |= {type: label for type in chosen if (label := label_of(type)) != OTHERS}
            return {type: self._labels.get(type, OTHERS) for type in present}


def label_of(type: JobType) -> str:
    """Return a type as a label: the form of the command line; a long one is cut and gets a digest of the whole."""
    text = names.shown(type).encode(errors="replace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}...{blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
