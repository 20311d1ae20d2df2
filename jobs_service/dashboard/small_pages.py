"""The pages of periodic jobs, of the supervisor tree, and of health."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import figures, texts
from jobs_service.dashboard.errors import error_page
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.store_size import SizeWatch
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import JobsError
from jobs_service.model.type_state import LATE
from jobs_service.names import shown

MOST_QUEUES: Final = 100
"""Most types with waiting jobs whose queues the page of health reads."""
_MOST_CRASHING: Final = 5
"""Most types with crashing runs that the page of health lists one by one."""
"""Most unreadable queues that the page of health lists one by one."""


async def periodic(visit: Visit) -> Response:
    """Return the page of periodic jobs."""
    service = visit.service
    ticks, known = await service.last_ticks(), service.periodic
    names = {shown(type): type for type in [*known, *ticks]}
    lasts = {shown(type): last for type, last in ticks.items()}
    paused = await asyncio.gather(*(service.paused(type) for type in names.values()))
    rows = []
    for (name, type), is_paused in sorted(zip(names.items(), paused, strict=True), key=lambda item: item[0][0]):
        found = known.get(type)
        last = lasts.get(name)
        upcoming = None
        if found is not None:
            last = found.last_tick(last)
            upcoming = found.schedule.next_after(visit.now)
        rows.append(
            {
                "type": type,
                "name": name,
                "paused": is_paused,
                "is_known": found is not None,
                "comes": "" if found is None else found.in_words,
                "missed": "" if found is None else found.missed.value,
                "overlap": found is not None and found.overlap,
                "last": last,
                "next": None if upcoming is None or math.isinf(upcoming) else upcoming,
            }
        )
    return page(visit, "periodic.html", {"rows": rows, "now": visit.now}, live={"of": "types"})


async def supervision(visit: Visit) -> Response:
    """Return the page of the supervisor tree."""
    tree = visit.service.supervision()
    context = {"tree": tree, "restarts": _restarts(tree), "now": visit.now}
    return page(visit, "supervision.html", context, live={"of": "tree"})


def _restarts(node: dict[str, Any]) -> int:
    return int(node.get("restarts", 0)) + sum(map(_restarts, node.get("children", ())))


async def health(visit: Visit, sizes: SizeWatch) -> Response:
    """Return the page of health: whether jobs are run and supervised, and the state of the store."""
    service = visit.service
    try:
        counts = await visit.counts()
        waiting_types = [type for type, each in counts.items() if each.pending][:MOST_QUEUES]
        queues = await asyncio.gather(*map(service.queue_state, waiting_types))
        others = await service.store.other_processes()
        lately = await visit.last_hour()
    except JobsError as error:
        return error_page(visit, error)
    due = [queue.next_scheduled for queue in queues if queue.next_scheduled is not None]
    late = max(visit.now - min(due), 0.0) if due else 0.0
    problems = [
        f"Of {shown(each.type)}, {figures.crashes(each, 'crashed')}." for each in lately.outages[:_MOST_CRASHING]
    ]
    if len(lately.outages) > _MOST_CRASHING:
        problems.append(f"The runs of {len(lately.outages)} types, all in all, crash.")
    if late > LATE:
        problems.append(f"Scheduled jobs are late by {texts.duration(late)}: nobody looks after them.")
    if others is not None and others[1]:
        problems.append(f"The jobs of processes that died ({others[1]}) are not taken back yet.")
    tree = service.supervision()
    if not tree:
        problems.append("This server has no supervisor tree: it does not notice lost jobs.")
    waiting = [
        (visit.now - queue.ready_since, type, queue.id)
        for type, queue in zip(waiting_types, queues, strict=True)
        if queue.ready_since is not None and not queue.paused
    ]
    oldest = max(waiting, key=lambda item: item[0], default=None)
    metrics = service.store.metrics()
    context = {
        "problems": problems,
        "types": len(counts),
        "jobs": sum(each.jobs for each in counts.values()),
        "paused": sum(queue.paused for queue in queues),
        "running": sum(each.running for each in counts.values()),
        "retrying": sum(each.retrying for each in counts.values()),
        "lately": lately.totals,
        "oldest": oldest,
        "late": late,
        "others": others,
        "restarts": _restarts(tree) if tree else 0,
        "location": service.store.location,
        "size": await asyncio.to_thread(sizes.look, service.store.location),
        "metrics": [(_words(name), texts.count(value)) for name, value in sorted(metrics.items())],
        "now": visit.now,
    }
    return page(visit, "health.html", context, live={"of": "types"})


def _words(name: str) -> str:
    return name.replace("_", " ")
