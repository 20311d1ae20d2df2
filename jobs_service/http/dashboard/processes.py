"""Who runs what: the handlers of this process with their slots, and all workers with the jobs that they have."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any, Final

from starlette.responses import Response

from jobs_service.errors import RecordDamaged
from jobs_service.http.dashboard import jobs, texts
from jobs_service.http.dashboard.filters import worker_of
from jobs_service.http.dashboard.rendering import page
from jobs_service.http.dashboard.visit import Visit
from jobs_service.model import HistoryKind, Job
from jobs_service.names import shown

MOST_READ: Final = 200
"""Running jobs that are looked at."""
_STARTED: Final = time.time()


async def processes(visit: Visit) -> Response:
    """Return the page."""
    service = visit.service
    counts = await visit.counts()
    running = [(type, each.running) for type, each in counts.items() if each.running]
    total = sum(number for _, number in running)
    share = max(MOST_READ // max(len(running), 1), 5)

    async def some(type: Any) -> list[Job]:
        found = await service.page(type, state="running", limit=share)
        return [*map((await service.get_redaction(type)).job, found.jobs)]

    pages = await asyncio.gather(*(some(type) for type, _ in running[: MOST_READ // 5]))
    others = await service.store.other_processes()
    workers: dict[str, list[dict[str, Any]]] = {}
    for job in (job for page_ in pages for job in page_):
        name, held = _held(job, visit.now)
        workers.setdefault(name, []).append(held)
    only = visit.query.get("worker", "")
    if only:
        workers = {name: held for name, held in workers.items() if name == only}
    context = {
        "workers": sorted(workers.items()),
        "only": only,
        "read": sum(map(len, pages)),
        "total": total,
        "here": {"host": socket.gethostname(), "pid": os.getpid(), "started": _STARTED},
        "handlers": _handlers(visit),
        "others": others,
        "is_quiet": service._remote.is_quiet,
        "may_stop": visit.state.stop is not None,
        "is_running": _runs(service.supervision()),
        "now": visit.now,
    }
    return page(visit, "processes.html", context, live={"of": "types"})


def _held(job: Job, now: float) -> tuple[str, dict[str, Any]]:
    """Return the name of the worker that has a job, and the job."""
    try:
        since = next((event.at for event in job.history if event.kind is HistoryKind.STARTED), None)
        progress = job.progress
        told = "" if progress is None else texts.progress_line(progress)
        held = {"type": job.type, "id": job.id, "since": since, "attempt": job.attempts, "cancel": job.cancel}
        return worker_of(job) or "unknown", {**held, "progress": told, "share": progress and texts.share(progress)}
    except RecordDamaged as error:
        row = jobs.row(job, now)
        return "unknown", {
            "type": row.type,
            "id": row.id,
            "since": None,
            "attempt": 0,
            "cancel": False,
            "progress": texts.brief(str(error)),
            "share": None,
        }


def _handlers(visit: Visit) -> list[dict[str, Any]]:
    """Return the handlers that run in this process: how many slots they have, and how many are taken."""
    rows = [
        {"type": type, "name": shown(type), "slots": use.slots, "busy": use.busy, "missed": use.heartbeats_missed}
        for type, use in visit.service.slot_uses().items()
    ]
    return sorted(rows, key=lambda row: str(row["name"]))


def _runs(tree: dict[str, Any]) -> bool:
    """Return whether this process runs handlers now."""
    return tree.get("name") == "runner" or any(child.get("name") == "runner" for child in tree.get("children", ()))
