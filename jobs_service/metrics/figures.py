"""The figures behind the metrics, as plain data: read from the store and from this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from jobs_service.errors import JobsError
from jobs_service.metrics.type_labels import OTHERS, TypeLabels
from jobs_service.model import JobType
from jobs_service.model.counts import Histogram, Totals, TypeCounts
from jobs_service.model.type_state import QueueState
from jobs_service.replication.status import ReplicationStatus
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT
from jobs_service.service import JobsService

STATES: Final = ("ready", "scheduled", "retrying", "running", "succeeded", "failed", "canceled")

_MOST_REPLICATIONS: Final = 1000
"""Most replications of each kind with series of their own."""

_AT_ONCE: Final = 50
"""Queues read at the same time."""


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
    """

    types: int = 0
    by_label: Mapping[str, OfTypes] = field(default_factory=dict)
    labels: Mapping[JobType, str] = field(default_factory=dict)
    replications: Mapping[str, ReplicationStatus] = field(default_factory=dict)


async def read(jobs: JobsService, labels: TypeLabels) -> Figures | None:
    """Return the figures from the store; None if it cannot be read."""
    try:
        counted = await jobs.counts()
        # There may be very many types: the loop goes on meanwhile.
        chosen = await asyncio.to_thread(_chosen, labels, counted)
        own = [type for type, label in chosen.items() if label != OTHERS]
        queues = await _queues(jobs, own)
        replications = await _replications(jobs, counted)
    except JobsError:
        return None
    now = jobs.wall_time()
    by_label = await asyncio.to_thread(_by_label, counted, chosen, queues, now)
    return Figures(len(counted), by_label, chosen, replications)


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


async def _queues(jobs: JobsService, types: list[JobType]) -> dict[JobType, QueueState]:
    found: dict[JobType, QueueState] = {}
    for start in range(0, len(types), _AT_ONCE):
        part = types[start : start + _AT_ONCE]
        queues = await asyncio.gather(*map(jobs.queue_state, part))
        found |= zip(part, queues, strict=True)
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
