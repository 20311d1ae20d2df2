"""The pages of failures, processes, periodic jobs, the supervisor tree, and health."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import figures, jobs, rendering
from jobs_service.dashboard.figures import SizeWatch
from jobs_service.dashboard.rendering import error_page, page
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import JobsError, RecordDamaged
from jobs_service.model import HistoryKind, Job, ProcessState
from jobs_service.model.job import Status
from jobs_service.model.type_state import LATE
from jobs_service.names import shown
from jobs_service.service.failures import Group, newest_failures
from jobs_service.service.selection import Filter, pages, worker_of

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

MOST_QUEUES: Final = 100
"""Most types with waiting jobs whose queues the page of health reads."""
_MOST_CRASHING: Final = 5
"""Most types with crashing runs that the page of health lists one by one."""


async def failures(visit: Visit) -> Response:
    """Return the page of failures."""
    found = await newest_failures(visit.service, await visit.counts())
    hour = (await visit.last_hour()).totals
    context = {
        "total": found.failed,
        "retrying": found.retrying,
        "groups": [_shown(visit, group) for group in found.groups],
        "read": found.read,
        "is_cut": found.is_cut,
        "hour": hour,
        "now": visit.now,
    }
    return page(visit, "failures.html", context, live={"of": "types"})


def _shown(visit: Visit, group: Group) -> dict[str, Any]:
    types = []
    for type, found in group.jobs.items():
        query = {"type_": type, **group.filter}
        types.append(
            {
                "type": type,
                "name": shown(type),
                "count": len(found),
                "newest": found[0].id,
                "see": visit.url("/type", **query),
                "retry": visit.url("/bulk/new", action="resubmit", **query),
            }
        )
    return {
        "state": group.state,
        "error": rendering.brief(group.error, 120) or "no error was kept",
        "message": group.message,
        "count": group.count,
        "attempts": group.attempts,
        "first": group.first,
        "last": group.last,
        "types": types,
    }


async def processes(visit: Visit) -> Response:
    """Return the page of processes and of the jobs that their workers run."""
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
        told = "" if progress is None else rendering.progress_line(progress)
        held = {"type": job.type, "id": job.id, "since": since, "attempt": job.attempts, "cancel": job.cancel}
        return worker_of(job) or "unknown", {**held, "progress": told, "share": progress and rendering.share(progress)}
    except RecordDamaged as error:
        row = jobs.row(job, now)
        return "unknown", {
            "type": row.type,
            "id": row.id,
            "since": None,
            "attempt": 0,
            "cancel": False,
            "progress": rendering.brief(str(error)),
            "share": None,
        }


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
    stored = await service.schedules.list()
    context = {"rows": rows, "schedules": stored, "now": visit.now}
    return page(visit, "periodic.html", context, live={"of": "types"})


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
        queues = await service.queue_states(waiting_types)
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
        problems.append(f"Scheduled jobs are late by {rendering.duration(late)}: nobody looks after them.")
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
        "metrics": [(_words(name), rendering.count(value)) for name, value in sorted(metrics.items())],
        "now": visit.now,
    }
    return page(visit, "health.html", context, live={"of": "types"})


def _words(name: str) -> str:
    return name.replace("_", " ")
