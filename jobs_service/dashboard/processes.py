"""All processes with their handlers and slots, and all workers with their running jobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import jobs, texts
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import RecordDamaged
from jobs_service.model import HistoryKind, Job, ProcessState
from jobs_service.service.selection import Filter, pages, worker_of
from jobs_service.status import Status

MOST_READ: Final = 200
"""Running jobs that the page reads, at most."""

COLOURS: Final = {
    ProcessState.RUNNING: "running",
    ProcessState.QUIET: "plain",
    ProcessState.STOPPING: "scheduled",
    ProcessState.SILENT: "canceled",
    ProcessState.DEAD: "failed",
}
"""For each state of a process the job state with the same colour and mark."""


_GONE: Final = (ProcessState.SILENT, ProcessState.DEAD)


async def processes(visit: Visit) -> Response:
    """Return the page."""
    service = visit.service
    counts = await visit.counts()
    running = [(type, each.running) for type, each in counts.items() if each.running]
    total = sum(number for _, number in running)
    share = max(MOST_READ // max(len(running), 1), 5)

    async def some(type: Any) -> list[Job]:
        async with aclosing(pages(service, type, Filter(state=Status.RUNNING), read=share, most=share)) as found:
            return (await anext(found)).jobs

    found_jobs = await asyncio.gather(*(some(type) for type, _ in running[: MOST_READ // 5]))
    others = await service.store.other_processes()
    found = await service.processes()
    workers: dict[str, list[dict[str, Any]]] = {}
    for job in (job for page_ in found_jobs for job in page_):
        name, held = _held(job, visit.now)
        workers.setdefault(name, []).append(held)
    only = visit.query.get("worker", "")
    if only:
        workers = {name: held for name, held in workers.items() if name == only}
        found = [each for each in found if each.worker == only]
    context = {
        "workers": sorted(workers.items()),
        "only": only,
        "read": sum(map(len, found_jobs)),
        "total": total,
        "processes": found,
        "is_idle": bool(found) and not any(each.slots and each.state not in _GONE for each in found),
        "colours": COLOURS,
        "here": service.process_id,
        "missed": sum(use.heartbeats_missed for use in service.slot_uses().values()),
        "others": others,
        "now": visit.now,
    }
    return page(visit, "processes.html", context, live={"of": "processes"})


def _held(job: Job, now: float) -> tuple[str, dict[str, Any]]:
    """Return the name of a job's worker, and a table row for the job."""
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
