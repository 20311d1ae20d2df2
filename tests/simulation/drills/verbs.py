"""Verbs of the command line on a store of which all is known: what they print, and what they change."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from jobs_service import JobId, JobsError, JobType
from jobs_service.cli.exits import AnswerIsNo
from jobs_service.names import from_json, shown
from tests.simulation.command_line import command_line
from tests.simulation.drills.told import PENDING, STATES, Job, Told, Type


async def _use(told: Told, *arguments: str, may_repeat: bool = False) -> list[dict[str, Any]]:
    """Use a verb, and return what it has printed; one that changes nothing sometimes also for people.

    Raises:
        AnswerIsNo: it says so itself.
    """
    is_json = not may_repeat or told.drill.random.random() < 0.8
    said = await command_line(told.place.jobs, [*arguments, *(["--json"] if is_json else [])])
    complaint = said.complaint()
    if complaint is not None:
        told.complain(f"console: {arguments} {complaint}")
    for type, each in told.types.items():
        if each.secret and any(_secret_of(job) in said.out + said.err for job in each.jobs.values()):
            told.complain(f"console: {arguments} has told what is secret of {type!r}: {said.out}")
    if isinstance(said.error, AnswerIsNo | JobsError):
        raise AnswerIsNo(str(said.error))
    if said.error is not None:
        told.complain(f"console: {arguments} has failed: {said.error!r}")
    if not is_json:  # for people: it is there, and that is all
        said = await command_line(told.place.jobs, [*arguments, "--json"])
    return [*map(row_of, said.out.splitlines())]


def row_of(line: str) -> dict[str, Any]:
    """Return what a verb has printed of an item; its type and id as on the command line."""
    row: dict[str, Any] = json.loads(line)
    return {**row, **{name: shown(from_json(row[name])) for name in ("type", "id") if name in row}}


def _secret_of(job: Job) -> str:
    return str(job.data.get("password", "no password"))


def _compare(told: Told, verb: str, found: object, wanted: object) -> None:
    if found != wanted:
        told.complain(f"console: {verb} tells {found}, not {wanted}")


def _some(told: Told) -> tuple[JobType, Type]:
    return told.drill.random.choice([*told.types.items()])


def _shown(told: Told, type: JobType, id: JobId, job: Job) -> dict[str, Any]:
    """Return what is to be told of a job."""
    data = {**job.data, "password": "[redacted]"} if told.types[type].secret and "password" in job.data else job.data
    return {
        "type": shown(type),
        "id": shown(id),
        "state": "finished" if job.is_finished else "pending" if job.state in PENDING else job.state,
        "outcome": job.state if job.is_finished else None,
        "data": data,
        "attempts": job.attempts,
        "cancel": job.cancel and not job.is_finished,
    }


def _as_told(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("type", "id", "state", "outcome", "data", "attempts", "cancel")}


async def _list(told: Told) -> None:
    random = told.drill.random
    type, state = random.choice([None, _some(told)[0]]), random.choice([None, "pending", "finished", *STATES])
    limit = random.choice([None, None, 1, 3])
    groups = {"pending": PENDING, "finished": STATES[4:]}
    wanted = [
        _shown(told, each, id, job)
        for each in told.types
        for id, job in told.types[each].jobs.items()
        if (type is None or each == type) and (state is None or job.state in groups.get(state, (state,)))
    ]
    chosen = [] if type is None else [shown(type)]
    chosen += [] if state is None else ["--state", state]
    rows = [
        *map(
            _as_told,
            await _use(told, "list", *chosen, *([] if limit is None else ["--limit", str(limit)]), may_repeat=True),
        )
    ]
    if limit is not None and len(rows) == min(limit, len(wanted)):
        wanted = [each for each in wanted if each in rows]
    _compare(told, f"list {chosen} {limit}", sorted(rows, key=repr), sorted(wanted, key=repr))


async def _show(told: Told) -> None:
    type, each = _some(told)
    id = told.drill.random.choice([*each.jobs, "nobody"])
    try:
        rows = await _use(told, "show", shown(type), id, may_repeat=True)
    except AnswerIsNo:
        rows = []
    wanted = [_shown(told, type, id, each.jobs[id])] if id in each.jobs else []
    _compare(told, "show", [*map(_as_told, rows)], wanted)
    if rows and ("error" in rows[0] and rows[0]["error"]) and each.jobs[id].error is None:
        told.complain(f"console: show tells of an error: {rows}")


async def _types(told: Told) -> None:
    wanted = {
        shown(type): {
            "timeout": each.timeout,
            "paused": each.paused,
            **{state: each.count(state) for state in STATES},
        }
        for type, each in told.types.items()
        if each.is_there
    }
    rows = await _use(told, "types", may_repeat=True)
    found = {row["type"]: {name: row[name] for name in ("timeout", "paused", *STATES)} for row in rows}
    _compare(told, "types", found, wanted)


async def _stats(told: Told) -> None:
    only = told.drill.random.choice([None, *(type for type, each in told.types.items() if each.is_there)])
    rows = await _use(told, "stats", *([] if only is None else [shown(only)]), may_repeat=True)
    found = {row["type"]: (row["paused"], {state: row[state] for state in STATES}) for row in rows}
    wanted = {
        shown(type): (
            each.paused,
            {state: each.count(state) for state in STATES},
        )
        for type, each in told.types.items()
        if each.is_there and only in (None, type)
    }
    _compare(told, "stats", found, wanted)


async def _workers(told: Told) -> None:
    only = told.drill.random.choice([None, _some(told)[0]])
    rows = await _use(told, "workers", *([] if only is None else [shown(only)]), may_repeat=True)
    found = sorted((row["worker"], row["type"], row["id"], row["attempt"], row["cancel"]) for row in rows)
    wanted = sorted(
        ("worker", shown(type), id, 1, job.cancel)
        for type, each in told.types.items()
        for id, job in each.jobs.items()
        if job.state == "running" and (type == only if only is not None else each.timeout is not None)
    )
    _compare(told, "workers", found, wanted)


async def _failures(told: Told) -> None:
    rows = await _use(told, "failures", may_repeat=True)
    found = {(row["error"], row["message"]): row["count"] for row in rows}
    failed = [job for each in told.types.values() for job in each.jobs.values() if job.state == "failed"]
    errors = [(None, "") if job.error is None else (job.error.type, job.error.message) for job in failed]
    _compare(told, "failures", found, dict(Counter(errors)))
    if any((row["failed"], row["read"]) != (len(failed), len(failed)) for row in rows):
        told.complain(f"console: {len(failed)} jobs have failed, and it tells {rows}")


async def _health(told: Told) -> None:
    """Its times are the machine's; what it counts is so."""
    found: list[dict[str, Any]] = []
    said = await command_line(told.place.jobs, ["health", "--json"])
    found = [json.loads(line) for line in said.out.splitlines()]
    there = [each for each in told.types.values() if each.timeout is not None]
    ready = {
        (shown(type), id)
        for type, each in told.types.items()
        for id, job in each.jobs.items()
        if job.state == "ready" and not each.paused and each.timeout is not None
    }
    for row in found:
        counted = row["types"], row["paused"], row["running"], row["uncounted"]
        wanted = len(there), sum(each.paused for each in there), sum(each.count("running") for each in there), 0
        _compare(told, "health", counted, wanted)
        oldest = row["oldest_ready"]
        named = None if oldest is None else tuple(shown(from_json(oldest[name])) for name in ("type", "id"))
        if named not in ready if ready else named is not None:
            told.complain(f"console: health names {named}, and ready are {ready}")
    if len(found) != 1:
        told.complain(f"console: health has told {said}")


async def _settings(told: Told) -> None:
    """What was said of a type."""
    type, each = _some(told)
    if not each.jobs and each.timeout is None:
        return
    [kept] = await _use(told, "retention", shown(type), may_repeat=True)
    [hidden] = await _use(told, "redact", shown(type), may_repeat=True)
    _compare(told, "retention", (kept["keep"], kept["keep_failed"]), each.keep)
    _compare(told, "redact", tuple(hidden["redact"]), each.secret)


LOOKING: Final = (_list, _list, _show, _types, _stats, _workers, _failures, _health, _settings)


async def _pause(told: Told) -> None:
    type, each = _some(told)
    wanted = told.drill.random.random() < 0.6
    [row] = await _use(told, "pause" if wanted else "resume", shown(type))
    each.paused = wanted
    _compare(told, "pause", row, {"type": shown(type), "paused": wanted})
    taken = await told.place.jobs.accept(type, timeout=0)
    if wanted and taken is not None:
        told.complain(f"console: {type!r} was paused, and {taken} was taken")
    if taken is not None:
        each.jobs[str(taken.id)].state, each.jobs[str(taken.id)].attempts = "running", 1
        each.happened["started"] += 1


async def _keep(told: Told) -> None:
    type, each = _some(told)
    random, texts = told.drill.random, {None: "forever", 600.0: "10m", 90.0: "90"}
    keep, failed = random.choice([*texts]), random.choice([*texts])
    given: list[str] = []
    if random.random() < 0.7:
        given += ["--keep", texts[keep]]
        each.keep = keep, each.keep[1]
    if random.random() < 0.7:
        given += ["--keep-failed", texts[failed]]
        each.keep = each.keep[0], failed
    [row] = await _use(told, "retention", shown(type), *given)
    _compare(told, f"retention {given}", row, {"type": shown(type), "keep": each.keep[0], "keep_failed": each.keep[1]})


async def _hide(told: Told) -> None:
    type, each = _some(told)
    each.secret = told.drill.random.choice([(), ("password",), ("password", "error:message")])
    given = [*each.secret] or ["--none"]
    [row] = await _use(told, "redact", shown(type), *given)
    _compare(told, "redact", row, {"type": shown(type), "redact": [*each.secret]})
    if "error:message" in each.secret:  # else the groups of failures are others
        each.secret = ("password",)
        await told.place.jobs.set_redaction(type, each.secret)


async def _set_timeout(told: Told) -> None:
    type, each = _some(told)
    if told.drill.random.random() < 0.3 and (each.jobs or each.timeout is not None):
        [row] = await _use(told, "types", "clear", shown(type))
        each.timeout = None
    else:
        [row] = await _use(told, "types", "set", shown(type), "2m")
        each.timeout = 120.0
    _compare(told, "types set", row, {"type": shown(type), "timeout": each.timeout})


async def _add(told: Told) -> None:
    type, each = _some(told)
    id, with_timeout = f"added {each.happened['added']}", told.drill.random.random() < 0.5
    data = {"x": told.drill.random.choice(["a b", "ü"])}
    given = ["--data", json.dumps(data), *(["--timeout", "90"] if with_timeout else [])]
    was = each.timeout
    try:
        rows = await _use(told, "add", shown(type), id, *given, "--resubmit")
    except AnswerIsNo:
        if was is not None or with_timeout:
            told.complain(f"console: add to {type!r} was refused")
        return
    if was is None and not with_timeout:
        told.complain(f"console: add to {type!r}, which is not there, made {rows}")
    each.timeout = 90.0 if was is None else was
    each.jobs[id] = Job("ready", data, told.now())
    each.happened["added"] += 1
    _compare(told, "add", [*map(_as_told, rows)], [_shown(told, type, id, each.jobs[id])])


async def _remove(told: Told) -> None:
    type, each = _some(told)
    id, force = told.drill.random.choice([*each.jobs, "nobody"]), told.drill.random.random() < 0.5
    said = await command_line(told.place.jobs, ["remove", shown(type), id, "--json", *(["--force"] if force else [])])
    job = each.jobs.get(id)
    if job is None:
        _compare(told, "remove", (said.code, said.out), (1, ""))
        return
    is_canceled = job.state == "running" and not force
    wanted = {"type": shown(type), "id": shown(id), "removal": "canceled" if is_canceled else "removed"}
    _compare(told, "remove", json.loads(said.out or "null"), wanted)
    job.cancel = True
    if not is_canceled:
        del each.jobs[id]


async def _resubmit(told: Told) -> None:
    type, each = _some(told)
    ended = [id for id, job in each.jobs.items() if job.is_finished]
    if not ended:
        return
    id = told.drill.random.choice(ended)
    rows = await _use(told, "resubmit", shown(type), id)
    each.jobs[id] = Job("ready", each.jobs[id].data, told.now())
    each.happened["added"] += 1
    _compare(told, "resubmit", [*map(_as_told, rows)], [_shown(told, type, id, each.jobs[id])])


CHANGING: Final = (_pause, _pause, _keep, _hide, _set_timeout, _add, _remove, _resubmit)
