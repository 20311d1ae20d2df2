"""The pages of periodic jobs, of a stretch of time, and of the system: processes, checks, the store, the tree."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from jobs_service import durations
from jobs_service.dashboard import figures, jobs, rendering
from jobs_service.dashboard.figures import SizeWatch
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import BadAddress, Visit
from jobs_service.errors import RecordDamaged
from jobs_service.model import HistoryKind, Job, JobType, ProcessInfo, ProcessState
from jobs_service.model.job import Status
from jobs_service.model.process import OutboxInfo
from jobs_service.model.type_state import LATE, QueueState, TypeCounts
from jobs_service.names import shown
from jobs_service.runner.ticker import Periodic
from jobs_service.service import queries
from jobs_service.service.failures import LastHour
from jobs_service.service.presence import GONE, relayed
from jobs_service.service.selection import Filter, pages, worker_of

MOST_READ: Final = 200
"""Running jobs that the page reads, at most."""

SIGNS: Final = {
    ProcessState.RUNNING: ("running", "running"),
    ProcessState.QUIET: ("paused", "paused"),
    ProcessState.STOPPING: ("scheduled", "scheduled"),
    ProcessState.SILENT: ("failed", "silent"),
    ProcessState.DEAD: ("failed", "failed"),
}
"""For each state of a process its colour and icon."""


_MOST_CRASHING: Final = 5
"""Most types with crashing runs that are listed one by one."""
_PAST: Final = 30
"""Runs of a periodic type that are shown."""
_MOST_PAST: Final = 30
"""Periodic types whose runs are shown."""
_MOST_MARKS: Final = 120
_HALF_DAY: Final = 43_200.0
_RAN: Final = ("succeeded", "failed", "retrying", "running", "canceled")
_NO_RUNS: Final[Mapping[str, Any]] = {"outcome": "", "took": None, "runs": [], "day": []}


async def system(visit: Visit, sizes: SizeWatch) -> Response:
    """Return the page of processes, of checks, of the store, and of the supervisor tree."""
    service, reads = visit.service, visit.reads
    began = time.monotonic()
    counts = await reads.counts()
    answered = time.monotonic() - began
    queues, lately, found, others = await asyncio.gather(
        reads.queues(), reads.last_hour(), service.processes(), service.store.other_processes()
    )
    only = visit.query.get("worker", "")
    workers, read = await _running(visit, counts, only)
    shown_here = [each for each in found if not only or each.worker == only]
    tree = service.supervision()
    waiting = [
        (visit.now - queue.ready_since, type, queue.id)
        for type, queue in queues.items()
        if queue.ready_since is not None and not queue.paused
    ]
    checks = _checks(visit, found, queues, lately, others, tree)
    metrics = service.store.metrics()
    context = {
        "problems": [problem for problem, *_ in checks if problem],
        "checks": [
            (True, "The store answers", rendering.duration(answered)),
            *((not problem, what, figure) for problem, what, figure in checks),
        ],
        "only": only,
        "processes": shown_here,
        "taken": sum(each.taken for each in shown_here),
        "slots": sum(each.slots for each in shown_here),
        "signs": SIGNS,
        "here": service.process_id,
        "others": others,
        "workers": sorted(workers.items()),
        "read": read,
        "total": sum(each.running for each in counts.values()),
        "types": len(counts),
        "jobs": sum(each.jobs for each in counts.values()),
        "oldest": max(waiting, key=lambda item: item[0], default=None),
        "restarts": _restarts(tree) if tree else 0,
        "tree": "\n".join(_tree(tree)) if tree else "",
        "location": service.store.location,
        "size": await asyncio.to_thread(sizes.look, service.store.location),
        "metrics": [(name.replace("_", " "), rendering.count(value)) for name, value in sorted(metrics.items())],
        "now": visit.now,
    }
    return page(visit, "system.html", context, live={"of": "processes"})


def _checks(
    visit: Visit,
    processes: Sequence[ProcessInfo],
    queues: Mapping[JobType, QueueState],
    lately: LastHour,
    others: tuple[int, int] | None,
    tree: Mapping[str, Any],
) -> list[tuple[str, str, str]]:
    """Return checks: the problem, "" for none, the check in words, and its figure."""
    silent = [rendering.brief(each.worker, 60) for each in processes if each.state in GONE]
    due = [queue.next_scheduled for queue in queues.values() if queue.next_scheduled is not None]
    late = max(visit.now - min(due), 0.0) if due else 0.0
    crashing = [
        f"Of {shown(each.type)}, {figures.crashes(each, 'crashed')}." for each in lately.outages[:_MOST_CRASHING]
    ]
    if len(lately.outages) > _MOST_CRASHING:
        crashing.append(f"The runs of {len(lately.outages)} types, all in all, crash.")
    dead = others[1] if others else 0
    lost = "This server has no supervisor tree: it does not notice lost jobs." if not tree else ""
    if dead:
        lost = f"The jobs of processes that died ({dead}) are not taken back yet."
    versions = sorted({each.version for each in processes if each.state not in GONE})
    restarts = rendering.many(_restarts(tree), "restart") if tree else "none"
    return [
        (" ".join(f"{name} is silent." for name in silent[:3]), "Processes are heard of", f"{len(processes)}"),
        (lost, "Lost jobs are looked after", f"{rendering.count(lately.totals.lost)} in the last hour"),
        (
            f"Scheduled jobs are late by {rendering.duration(late)}: nobody looks after them." if late > LATE else "",
            "Scheduled jobs become ready in time",
            f"late by {rendering.duration(late)}" if late > 1 else "on time",
        ),
        (
            " ".join(crashing),
            "Runs do not crash in numbers",
            f"{rendering.count(lately.totals.crashed)} in the last hour",
        ),
        (
            f"Processes have different versions: {', '.join(versions)}." if len(versions) > 1 else "",
            "Versions agree",
            ", ".join(versions) or "no process",
        ),
        ("", "The supervisor tree runs", f"{restarts}"),
        *map(_outbox_check, relayed(processes)),
    ]


def _outbox_check(outbox: OutboxInfo) -> tuple[str, str, str]:
    name, problem = rendering.brief(outbox.name, 60), figures.outbox_problem(outbox)
    return f"Outbox {name} {problem}." if problem else "", f"Outbox {name} is moved", figures.outbox_lag(outbox)


def _tree(node: Mapping[str, Any], lead: str = "", more: str = "") -> Iterator[str]:
    """Yield the lines of a supervisor tree."""
    seconds = node.get("seconds")
    up = "" if seconds is None else f"  up {rendering.duration(seconds)}"
    again = f"  {rendering.many(node['restarts'], 'restart')}" if node.get("restarts") else ""
    yield f"{lead}{rendering.brief(str(node.get('name')))}  {node.get('state')}{up}{again}"
    children = [*node.get("children", ())]
    for child in children:
        is_last = child is children[-1]
        yield from _tree(child, more + ("└ " if is_last else "├ "), more + ("  " if is_last else "│ "))


async def _running(
    visit: Visit, counts: Mapping[JobType, TypeCounts], only: str
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Return some running jobs by worker, only those of one if it is named, and how many were read."""
    running = [type for type, each in counts.items() if each.running]
    share = max(MOST_READ // max(len(running), 1), 5)

    async def some(type: Any) -> list[Job]:
        async with aclosing(pages(visit.service, type, Filter(state=Status.RUNNING), read=share, most=share)) as found:
            return (await anext(found)).jobs

    found_jobs = await asyncio.gather(*(some(type) for type in running[: MOST_READ // 5]))
    workers: dict[str, list[dict[str, Any]]] = {}
    for job in (job for page_ in found_jobs for job in page_):
        name, held = _held(job)
        if not only or name == only:
            workers.setdefault(name, []).append(held)
    return workers, sum(map(len, found_jobs))


def _held(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the name of a job's worker, and a table row for the job."""
    try:
        since = next((event.at for event in job.history if event.kind is HistoryKind.STARTED), None)
        progress = job.progress
        told = "" if progress is None else rendering.progress_line(progress)
        held = {"type": job.type, "id": job.id, "since": since, "attempt": job.attempts, "cancel": job.cancel}
        return worker_of(job) or "unknown", {**held, "progress": told, "share": progress and rendering.share(progress)}
    except RecordDamaged as error:
        return "unknown", {
            "type": job.type,
            "id": job.id,
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
    settings = await service.type_settings(names.values())
    rows = []
    for (name, type), each in zip(sorted(names.items()), settings, strict=True):
        found = known.get(type)
        last, upcoming = lasts.get(name), math.inf
        if found is not None:
            last = found.last_tick(last)
            upcoming = found.schedule.next_after(visit.now)
        row = {
            "type": type,
            "name": name,
            "paused": each.paused,
            "is_known": found is not None,
            "comes": "" if found is None else found.in_words,
            "missed": "" if found is None else found.missed.value,
            "overlap": found is not None and found.overlap,
            "last": last,
            "next": None if math.isinf(upcoming) else upcoming,
            **_NO_RUNS,
        }
        rows.append(row)
    rows.sort(key=lambda row: row["next"] or math.inf)
    for row, runs in zip(rows, await asyncio.gather(*(_past(visit, row) for row in rows[:_MOST_PAST])), strict=False):
        row.update(runs, day=[*runs["day"], *_to_come(known.get(row["type"]), visit.now)])
    following = next((row for row in rows if row["next"] and not row["paused"]), None)
    stored = await service.schedules.list()
    context = {"rows": rows, "schedules": stored, "next": following, "now": visit.now}
    return page(visit, "periodic.html", context, live={"of": "types"})


async def _past(visit: Visit, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last runs of a periodic type: outcome, how long it took, all as bars, and as marks of the day."""
    found = await visit.service.page(row["type"], limit=_PAST, newest_first=True)
    told = [each for job in reversed(found.jobs) if (each := jobs.row(job, visit.now)).state in _RAN]
    longest = max((each.ran or 0.0 for each in told), default=0.0) or 1.0
    begun = [(each.state, each.last.at - (each.ran or 0.0)) for each in told if each.last is not None]
    return {
        "outcome": told[-1].state if told else "",
        "took": told[-1].ran if told else None,
        "runs": [(each.state, round((each.ran or 0.0) / longest, 3)) for each in told],
        "day": [(state, _of_day(at - visit.now)) for state, at in begun if visit.now - at < _HALF_DAY],
    }


def _to_come(found: Periodic | None, now: float) -> list[tuple[str, float]]:
    """Return the ticks of the next hours, as far as marks can tell them apart."""
    marks: list[tuple[str, float]] = []
    at = now
    while found is not None and len(marks) < _MOST_MARKS:
        at = found.schedule.next_after(at)
        if at - now > _HALF_DAY:
            break
        marks.append(("scheduled", _of_day(at - now)))
    return marks


def _of_day(seconds: float) -> float:
    return round(120 + seconds / _HALF_DAY * 120, 1)


def _restarts(node: Mapping[str, Any]) -> int:
    return int(node.get("restarts", 0)) + sum(map(_restarts, node.get("children", ())))


# A stretch of time


_MINUTE: Final = 60
_HOUR: Final = 3600
_LONGEST: Final = 24 * _HOUR
"""Most seconds of the stretch."""
_MOST_MINUTES: Final = 10 * _MINUTE
"""Longest stretch that is read by minute: there may be thousands of types. Others are rounded to whole hours."""
_MINUTES_KEPT: Final = 25 * _HOUR
_MOST: Final = 100
"""Most types that are shown."""


async def past(visit: Visit) -> Response:
    """Return the page; its address has `from`, a time in UTC, and `for`, a duration."""
    begin, length = _stretch(visit)
    is_minutes = length <= _MOST_MINUTES and begin >= visit.now - _MINUTES_KEPT
    if not is_minutes:
        length = (-(-(begin + length) // _HOUR) - begin // _HOUR) * _HOUR
        begin = begin // _HOUR * _HOUR
    seconds = _MINUTE if is_minutes else _HOUR
    first, number = begin // seconds, length // seconds
    types = [*await visit.reads.counts()]
    found = await queries.columns(
        visit.service._access, types, "minute" if is_minutes else "hour", first, first + number - 1, number, times=False
    )
    # There may be very many types: the loop goes on meanwhile.
    busy = await asyncio.to_thread(
        lambda: sorted(
            (
                (type, every)
                for type, (_, every) in zip(types, found, strict=True)
                if any(figures.numbers(every.totals))
            ),
            key=lambda item: -item[1].ran.sum,
        )
    )
    took = sum(every.ran.sum for _, every in busy)
    context = {
        "begin": begin,
        "end": begin + length,
        "address": (_text(begin), durations.typed(length)),
        "every": figures.together([every for _, every in busy]),
        "took": took,
        "p95": figures.percentile,
        "retried": figures.retried,
        "found": len(busy),
        "rows": [
            {
                "name": shown(type),
                "every": every,
                "share": every.ran.sum / took if took else 0.0,
                "href": visit.url("/type", type_=type, **_ages(visit.now, begin, begin + length)),
            }
            for type, every in busy[:_MOST]
        ],
        "earlier": address(visit, begin - length, length),
        "later": address(visit, begin + length, length) if begin + length < visit.now else None,
    }
    return page(visit, "past.html", context)


def address(visit: Visit, begin: float, seconds: float) -> str:
    """Return the address of the page for a stretch; "" for one that is too long.

    Args:
        visit: the request.
        begin: seconds since the epoch.
        seconds: its length.
    """
    if seconds > _LONGEST:
        return ""
    return visit.url("/past", **{"from": _text(begin), "for": durations.typed(seconds)})


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _ages(now: float, begin: float, end: float) -> dict[str, Any]:
    """Return the filter for jobs whose last event was in a stretch."""
    older = {"older": durations.typed(int(now - end))} if end < now else {}
    return {"younger": durations.typed(max(int(now - begin), 1)), **older}


def _stretch(visit: Visit) -> tuple[int, int]:
    """Return the beginning, seconds since the epoch, and the length in seconds, both of whole minutes."""
    text = visit.query.get("from", "").strip() or _text(visit.now // _HOUR * _HOUR - _HOUR)
    try:
        time = datetime.fromisoformat(text)
        begin = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()) // _MINUTE * _MINUTE
        _text(begin + 2 * _LONGEST)
    except (ValueError, OverflowError, OSError):
        raise BadAddress(f"from={text[:60]!r} is no time; write 2026-11-26T14:00Z") from None
    try:
        length = durations.parsed(visit.query.get("for", "").strip() or "1h")
    except ValueError as error:
        raise BadAddress(f"for: {error}") from None
    if not _MINUTE <= length <= _LONGEST or begin < _LONGEST:
        raise BadAddress("a stretch begins after 1970-01-02, and is between 1m and 1d long")
    return begin, int(length) // _MINUTE * _MINUTE
