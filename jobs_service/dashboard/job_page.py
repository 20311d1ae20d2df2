"""The page of a job: all its data, and the actions on it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape
from starlette.responses import Response

from jobs_service import names
from jobs_service.dashboard import figures, jobs, rendering
from jobs_service.dashboard.jobs import Run
from jobs_service.dashboard.rendering import SECURITY, page, problem_page
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import RecordDamaged
from jobs_service.model import HistoryEvent, HistoryKind, Job
from jobs_service.model.job import ENDED, MEANT, Status, status_of
from jobs_service.names import compact, priority_text, shown
from jobs_service.redaction import is_marked
from jobs_service.replication.stored import ReplicationStatus
from jobs_service.service.bulk_actions import started_at
from jobs_service.service.selection import worker_of

FOLDED: Final = 4000
"""Most characters of a value that are shown unfolded; longer values are folded."""
MOST_SHOWN: Final = 100_000
_WAITS: Final = MEANT["pending"]

_EVENTS: Final = {
    HistoryKind.ADDED: ("ready", "ready", "Asked to run again"),
    HistoryKind.STARTED: ("running", "running", "Started"),
    HistoryKind.STOPPED: ("scheduled", "scheduled", "Given back unfinished"),
    HistoryKind.CRASHED: ("retrying", "retrying", "Crashed"),
    HistoryKind.LOST: ("failed", "silent", "Lost: its worker fell silent"),
    HistoryKind.FINISHED: ("succeeded", "succeeded", "Finished"),
    HistoryKind.CANCELED: ("canceled", "canceled", "Canceled"),
}
"""Colour, icon and words of events."""
_LIFE: Final = 1000.0
"""Width of the drawing of a job's runs."""
_TOKENS: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?')
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "/jobs_service/", "<frozen ")
"""Parts of the paths of frames that are no code of the application."""


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value as a page shows it.

    Attributes:
        text: the first MOST_SHOWN characters of its text, as HTML.
        folded: whether the page shows it only on request.
        size: the length of the whole text in characters.
        cut: whether the text was shortened.
    """

    text: Markup
    folded: bool
    size: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a job's history as a page shows it.

    Attributes:
        at: seconds since the epoch.
        what: the event in words.
        colour, icon: its state and shape.
        detail: the worker, or the reason.
        run: the number of the run that began, counted from the history's first event; None if no run began.
    """

    at: float
    what: str
    colour: str
    icon: str
    detail: str
    run: int | None


def value(given: Any) -> Value | None:
    """Return a JSON value in its displayed form; None for None."""
    if given is None:
        return None
    text = rendering.json_text(given)
    return Value(_marked_up(text[:MOST_SHOWN]), len(text) > FOLDED, len(text), len(text) > MOST_SHOWN)


def _marked_up(text: str) -> Markup:
    """Return JSON as HTML with names and texts marked."""
    parts, end = [], 0
    for found in _TOKENS.finditer(text):
        kind = "k" if found[2] else "v"
        parts += [escape(text[end : found.start()]), Markup('<b class="{}">{}</b>').format(kind, found[1])]
        end = found.end(1)
    return Markup("").join([*parts, escape(text[end:])])


async def job_page(visit: Visit) -> Response:
    """Return the page."""
    type, id, service = visit.type(), visit.id(), visit.service
    try:
        job = await jobs.one(service, type, id)
        job.history, job.data, job.result, job.error, job.progress  # noqa: B018 - a damaged part raises
    except RecordDamaged as error:
        return problem_page(
            visit,
            500,
            f"Job {shown(id)} cannot be read",
            str(error),
            "It can be removed all the same: jobs-service remove TYPE ID --force.",
        )
    state = status_of(job, visit.now)
    queue = await service.queue_state(type)
    progress = job.progress
    slots = figures.slots(await visit.reads.processes(), type)
    runs = jobs.runs_of(job)
    most = jobs.most_attempts(service, type) if job.max_attempts is None else job.max_attempts
    context = {
        "job": job,
        "type": type,
        "id": id,
        "state": state.value,
        "says": _says(job, state, queue.paused, most, slots),
        "worker": worker_of(job),
        "started": started_at(job),
        "data": value(job.data),
        "result": value(job.result),
        "traceback": ()
        if job.error is None or not job.error.traceback
        else frames(rendering.lines(job.error.traceback)),
        "error_line": "" if job.error is None else rendering.error_line(job.error),
        "error_message": "" if job.error is None else rendering.lines(job.error.message),
        "progress_line": "" if progress is None else rendering.progress_line(progress),
        "replication": ReplicationStatus.of(job),
        "share": None if progress is None else rendering.share(progress),
        "steps": steps(job.history, state),
        "runs": runs,
        "life": _life(job, runs, state, visit.now),
        "ends": _EVENTS,
        "attempts": jobs.attempts_text(job, most),
        "most": most,
        "ran": sum(run.ran(visit.now) for run in runs),
        "cut_history": bool(job.history) and job.history[-1].kind is not HistoryKind.ADDED,
        "priority": priority_text(job.priority),
        "edited": _edited(job) if state in _WAITS else None,
        "cli": command_line(job),
        "curl": curl(job, visit.request.state.base, with_token=visit.role.proven),
        "folded_from": FOLDED,
        "clonable": not is_marked(job.data),
        "now": visit.now,
    }
    return page(visit, "job.html", context, live={"of": "job", "type_": type, "id_": id})


def _edited(job: Job) -> dict[str, str]:
    """Return the fields of the form that changes a waiting job."""
    data = jobs.encoded(json.dumps(job.data, ensure_ascii=False, indent=2)).decode()
    return {"data": data, "priority": priority_text(job.priority), "delay": ""}


def frames(traceback: str) -> list[tuple[str, str]]:
    """Return the parts of a traceback, each with its kind.

    The kinds are "own" for a frame of the application, "lib" for the lines before the frames and for a number of folded
    frames of libraries, and "" for the error itself.
    """
    parts: list[tuple[str, str]] = []
    folded = 0
    for block in re.split(r'\n(?=  File ")', traceback):
        frame, _, rest = block.partition("\n")
        is_frame = frame.startswith('  File "')
        # What follows the indented lines of the last frame is the error itself.
        indented = re.match(r"(?:    .*(?:\n|$))*", rest)
        code, after = (rest[: indented.end()], rest[indented.end() :]) if indented else ("", rest)
        if is_frame and any(part in frame for part in _LIBRARIES):
            folded += 1
        else:
            parts += _fold(folded)
            folded = 0
            parts.append(("own", f"{frame}\n{code}".rstrip("\n")) if is_frame else ("lib", block))
            after = after if is_frame else ""
        if after:
            parts += [*_fold(folded), ("", after)]
            folded = 0
    return [*parts, *_fold(folded)]


def _fold(number: int) -> list[tuple[str, str]]:
    return [("lib", f"  … {rendering.many(number, 'frame')} of libraries")] if number else []


def _life(job: Job, runs: list[Run], state: Status, now: float) -> dict[str, Any] | None:
    """Return the drawing of a job's runs, to scale; None without runs."""
    if not runs:
        return None
    due = job.run_at.timestamp() if job.run_at is not None and state is Status.RETRYING else None
    begin = min(runs[0].due, runs[0].began)
    end = max(due or 0.0, now if runs[-1].ended is None or due is not None else runs[-1].ended, begin + 0.001)

    def x(at: float) -> float:
        return round((min(max(at, begin), end) - begin) / (end - begin) * _LIFE, 1)

    bars, pauses = [], []
    for place, run in enumerate(runs):
        if place:
            pauses.append((x(runs[place - 1].ended or run.due), x(run.began)))
        elif run.waited:
            bars.append(("ready", x(run.due), max(x(run.began) - x(run.due), 1.0)))
        until = now if run.ended is None else run.ended
        bars.append(("running", x(run.began), max(x(until) - x(run.began), 2.0)))
        if run.end is not None and run.end is not HistoryKind.FINISHED:
            bars.append((_EVENTS[run.end][0], x(until) - 2, 4.0))
    if due is not None and runs[-1].ended is not None:
        pauses.append((x(runs[-1].ended), x(due)))
    is_open = state in (Status.RUNNING, Status.RETRYING)
    return {"bars": bars, "pauses": pauses, "now": x(now) if is_open else None, "seconds": min(end, now) - begin}


def _says(job: Job, state: Status, paused: bool, most: int | None, slots: tuple[int, int] | None) -> str:
    """Return a sentence about the job's next step or its outcome.

    Args:
        job: the job.
        state: of the job.
        paused: whether its type is.
        most: its attempts; None if unknown.
        slots: of its type, taken and in all; None if unknown.
    """
    if state in (Status.SCHEDULED, Status.RETRYING):
        is_again = state is Status.RETRYING
        of = "" if most is None else f" of {rendering.count(most)}"
        again = f"Its run has crashed; attempt {rendering.count(job.attempts + 1)}{of} begins"
        why = again if is_again else "It waits until it is due; it runs"
        return why + " at the earliest" + (", once its type is resumed" if paused else "")
    if state is Status.READY:
        if paused:
            return "It could run now, but its type is paused: resume the type."
        if slots == (0, 0):
            return "It could run now, but no known process has a handler of its type; clients over HTTP may take it."
        if slots is not None and slots[0] >= slots[1]:
            return f"It could run now, and waits for a slot: all {rendering.count(slots[1])} of its type are taken."
        return "It could run now, and waits for a worker of its type to take it."
    if state is Status.RUNNING:
        if job.cancel:
            return "Its worker was asked to end it."
        return "It runs again afterwards: somebody has asked for that." if job.resubmit else "A worker has it."
    return {
        Status.SUCCEEDED: "It is done.",
        Status.FAILED: "It failed, and is not tried again by itself.",
        Status.CANCELED: "Somebody removed it while it ran.",
    }.get(state, "")


def steps(history: tuple[HistoryEvent, ...], state: Status) -> list[Step]:
    """Return the history of a job, newest event first; `state` is the job's present state."""
    found: list[Step] = []
    runs = 0
    for event in reversed(history):
        runs += event.kind is HistoryKind.STARTED
        run = runs if event.kind is HistoryKind.STARTED else None
        colour, icon, what = _EVENTS[event.kind]
        what = "Added" if not found and event.kind is HistoryKind.ADDED else what
        found.append(Step(event.at, what, colour, icon, rendering.lines(event.detail), run))
    if history and history[0].kind is HistoryKind.FINISHED and state in ENDED:
        found[-1] = replace(found[-1], what=state.value.capitalize(), colour=state.value, icon=state.value)
    return found[::-1]


def command_line(job: Job) -> str:
    """Return a shell command that adds such a job, with a new id because this one exists already."""
    parts = ["jobs-service", "add", shown(job.type)]
    if job.data is not None:
        parts += ["--data", compact(job.data)]
    if job.priority != 0:
        parts += ["--priority", priority_text(job.priority)]
    return shlex.join(parts)


def curl(job: Job, base: str, *, with_token: bool) -> str:
    """Return a curl command for the same; `with_token` only if a token is needed, as servers refuse an empty one."""
    body = {"data": job.data, "priority": names.name(job.priority)}
    parts = [
        "curl",
        "-X",
        "POST",
        f"{base}/v1/types/{quote(shown(job.type), safe='')}/jobs",
        "-H",
        "Content-Type: application/json",
        "-d",
        compact(body),
    ]
    return shlex.join(parts) + (' -H "Authorization: Bearer $JOBS_SERVICE_TOKEN"' if with_token else "")


async def download(visit: Visit) -> Response:
    """Return a part of a job as a file: data, result or error."""
    type, id = visit.type(), visit.id()
    part = visit.query.get("part", "data")
    if part not in ("data", "result", "error"):
        return problem_page(visit, 404, "There is no such part", "A job has data, result and error.")
    job = await jobs.one(visit.service, type, id)
    content = job.to_dict()[part]
    name = quote(f"{shown(type)}-{shown(id)}-{part}.json"[-120:], safe="")
    headers = {**SECURITY, "Content-Disposition": f"attachment; filename*=UTF-8''{name}", "Cache-Control": "no-store"}
    visit.state.audit.exported(visit.role.name, visit.request.state.client, type, id, what={"part": part})
    body = jobs.encoded(json.dumps(content, ensure_ascii=False, indent=2))
    return Response(body, media_type="application/json", headers=headers)


async def clone_page(visit: Visit, problem: str = "", given: Any = None) -> Response:
    """Return the form for a new job: a copy of an existing job, or an empty form."""
    type, service = visit.type(given), visit.service
    source = {"id": "", "data": "null", "priority": "0", "delay": ""}
    id = (given or visit.query).get("id") or ""
    from_id = (given or visit.query).get("from") or ""
    if given is not None:
        source = {name: str(given.get(name, "")) for name in source}
    elif from_id:
        job = await jobs.one(service, type, visit.id({"id": from_id}))
        if is_marked(job.data):
            problem = "Parts of this job's data are secret and not shown: put them in where it says [redacted]."
        source["data"] = jobs.encoded(json.dumps(job.data, ensure_ascii=False, indent=2)).decode()
        source["priority"] = priority_text(job.priority)
        id = ""
    context = {"type": type, "source": {**source, "id": id}, "from_id": from_id, "problem": problem}
    return page(visit, "clone.html", context, status=422 if given is not None else 200)
