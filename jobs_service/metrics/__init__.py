"""Metrics for Prometheus: counts and gauges of the jobs, the runners and the store of a service.

`await text(jobs)` returns the answer to a scrape; `collector(jobs)` is for a registry of the application's own.
docs/metrics.md names every metric. The module needs the extra `metrics`.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

from jobs_service.errors import JobsError

try:
    from prometheus_client import CollectorRegistry, generate_latest
except ImportError:
    raise JobsError("metrics need prometheus-client: pip install 'jobs-service[metrics]'") from None

from jobs_service.metrics.collector import Collected, Collector
from jobs_service.metrics.type_labels import MOST_TYPES
from jobs_service.service import JobsService

__all__ = ["CONTENT_TYPE", "Collector", "collector", "text"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `text`."""


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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected([*found.collect()]))
    # A megabyte of text takes a tenth of a second: the loop goes on meanwhile.
    return await asyncio.to_thread(generate_latest, registry)


def collector(jobs: JobsService, *, most_types: int = MOST_TYPES) -> Collector:
    """Return a collector for a registry of prometheus_client: `registry.register(metrics.collector(jobs))`.

    A scrape on another thread than the service's event loop, as by `start_http_server`, reads the store by itself. A
    scrape on the loop cannot wait for the store: call `await collector.refresh()` before `generate_latest`.

    Args:
        jobs: the service; it need not be open yet.
        most_types: the number of types with series of their own; all others share the series of "(other types)".
    """
    return Collector(jobs, most_types)


# The choice of types with series of their own must stay the same from scrape to scrape.
_collectors: WeakKeyDictionary[JobsService, Collector] = WeakKeyDictionary()
