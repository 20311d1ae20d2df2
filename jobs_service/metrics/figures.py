"""What the metrics show, as plain data: read from the store, and looked up in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from jobs_service.errors import JobsError
from jobs_service.layer.inspection import QueueState
from jobs_service.metrics.type_labels import OTHERS, TypeLabels
from jobs_service.model import JobType
from jobs_service.model.counts import Histogram, Totals, TypeCounts
from jobs_service.service import JobsService

STATES: Final = ("ready", "scheduled", "running", "succeeded", "failed", "canceled")

_AT_ONCE: Final = 50
"""Queues that are read at the same time."""


@dataclass(frozen=True, slots=True)
class OfTypes:
    """What the store tells of the types with one label.

    Attributes:
        counts: of all of them together.
        oldest_ready: seconds for which the job has been ready that has been so for longest; 0 when none is.
        paused: how many of them are paused.
    """

    counts: TypeCounts
    oldest_ready: float = 0.0
    paused: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What the store tells.

    Attributes:
        types: how many types there are.
        by_label: by the label of the type.
        labels: of each type.
    """

    types: int = 0
    by_label: Mapping[str, OfTypes] = field(default_factory=dict)
    labels: Mapping[JobType, str] = field(default_factory=dict)


async def read(jobs: JobsService, labels: TypeLabels) -> Figures | None:
    """Return what the store tells; None when it cannot be read."""
    try:
        counted = await jobs.counts()
        chosen = labels.choose(counted, {type: counts.ready + counts.running for type, counts in counted.items()})
        own = [type for type, label in chosen.items() if label != OTHERS]
        queues = await _queues(jobs, own)
    except JobsError:
        return None
    now = jobs._context.sources.wall_time()
    by_label: dict[str, OfTypes] = {}
    for type, counts in counted.items():
        label, queue = chosen[type], queues.get(type)
        before = by_label.get(label)
        since = None if queue is None else queue.ready_since
        by_label[label] = OfTypes(
            counts if before is None else added(before.counts, counts),
            0.0 if since is None else max(now - since, 0.0),
            int(queue is not None and queue.paused),
        )
    return Figures(len(counted), by_label, chosen)


async def _queues(jobs: JobsService, types: list[JobType]) -> dict[JobType, QueueState]:
    found: dict[JobType, QueueState] = {}
    for start in range(0, len(types), _AT_ONCE):
        part = types[start : start + _AT_ONCE]
        found |= dict(zip(part, await asyncio.gather(*map(jobs.queue_state, part)), strict=True))
    return found


def added(one: TypeCounts, other: TypeCounts) -> TypeCounts:
    """Return the counts of two types together."""
    totals = Totals(*(getattr(one.totals, each.name) + getattr(other.totals, each.name) for each in fields(Totals)))
    waited, ran = _both(one.waited, other.waited), _both(one.ran, other.ran)
    jobs = {state: getattr(one, state) + getattr(other, state) for state in STATES}
    return TypeCounts(**jobs, totals=totals, waited=waited, ran=ran)


def _both(one: Histogram, other: Histogram) -> Histogram:
    return Histogram(tuple(map(sum, zip(one.counts, other.counts, strict=True))), one.sum + other.sum)
