"""`once`: notes the effect of a job beside the effect itself, in the same transaction of the application's database.

A row is about one request for a job, from its being added (or made to run again after a success) to its success, with
all retries. A request has no number in a job's record. But each of its runs knows when it was started, and when those
before it were, as far back as the job's history goes. So a row keeps these times, and two runs that have one in common
are of one request. They are compared for equality only, so that no clock needs to be right.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from itertools import zip_longest
from typing import Any, Final, overload

from jobs_service import names
from jobs_service.errors import InvalidJob, a_kind_of, job_name, shown
from jobs_service.model import Job
from jobs_service.outbox.connections import AsyncConnection, check_transaction, first_value
from jobs_service.outbox.rows import own_sources
from jobs_service.run_data import HistoryKind

_MOST_RUNS: Final = 20
_TOKEN_BYTES: Final = 8
_LONGEST_KEY: Final = 1000
_TIME = struct.Struct(">d")


@overload
def once(  # type: ignore[overload-overlap]
    connection: AsyncConnection, job: Job, key: str = ""
) -> Awaitable[bool]: ...


@overload
def once(connection: object, job: Job, key: str = "") -> bool: ...


def once(connection: Any, job: Job, key: str = "") -> Any:
    """Note, in a transaction of the application's database, that a job has its effect there; tell whether it had none.

    Called first in the transaction of the effect, it makes the effect happen once, whatever dies: on another try of the
    job it is False. If the transaction is rolled back, so is the note.

    A job that has failed and is retried does not have its effect again; one that has succeeded, or was canceled, and
    is made to run again does. One that gets other data before its success, or is asked for again while it runs and then
    loses its worker, is not told from a retry: give such jobs a `key` that tells their data apart.

    Args:
        connection: as for `enqueue`.
        job: the running job, as the handler got it.
        key: tells several effects of one job apart; at most 1,000 characters.

    Returns:
        True for the first time; of an asynchronous library, an awaitable of it.

    Raises:
        InvalidJob: no running job, one whose history has only the present of several tries, or an invalid key.
        InvalidSettings: as `enqueue`, or no transaction has begun on the connection, and none would begin with the
            next statement: note and effect would be two commits.
        JobsError: as `enqueue`.
    """
    if not isinstance(key, str) or len(key) > _LONGEST_KEY:
        raise InvalidJob(f"key {shown(key)}: {a_kind_of(key)}; allowed is str of at most {_LONGEST_KEY} characters")
    runs = _runs(job)
    check_transaction(connection)
    done = own_sources().token(_TOKEN_BYTES).hex()
    values = {
        "type": names.shown(job.type),
        "id": names.shown(job.id),
        "key": key,
        "runs": " ".join(runs),
        "done": done,
        **{f"run{number}": f"%{run}%" for number, run in enumerate(runs)},
    }
    is_same = " or ".join(f"jobs_service_once.runs like :run{number}" for number in range(len(runs)))
    # Whether it is the first one is the database's answer: a connection may give texts as bytes.
    sql = (
        "insert into jobs_service_once (type, id, key, runs, done, at) values (:type, :id, :key, :runs, :done, <now>)"
        " on conflict (type, id, key) do update set runs = excluded.runs, at = excluded.at,"
        f" done = case when {is_same} then jobs_service_once.done else excluded.done end returning done = :done"
    )
    answer = first_value(connection, sql, values)
    return _awaited(answer) if hasattr(answer, "__await__") else bool(answer)


async def _awaited(answer: Awaitable[Any]) -> bool:
    return bool(await answer)


def _runs(job: Any) -> list[str]:
    """Return the times at which the runs of a job's present request were started, the newest first."""
    if not isinstance(job, Job):
        raise InvalidJob(f"{shown(job)}: {a_kind_of(job)}; once takes the running job that a handler gets")
    found = []
    events = job.history
    for event, before in zip_longest(events, events[1:]):
        if event.kind is HistoryKind.CANCELED:
            break
        # A crash right before the end is that of a failure.
        if event.kind is HistoryKind.FINISHED and (before is None or before.kind is not HistoryKind.CRASHED):
            break
        if event.kind is HistoryKind.STARTED:
            found.append(_TIME.pack(event.at).hex())
    else:
        if len(found) == 1 and job.attempts > 1 and events[-1].kind is not HistoryKind.ADDED:
            raise InvalidJob(
                f"job {job_name(job.type, job.id)}: its history does not reach back to the run before, so once cannot "
                "tell another try of the job from a new one: its handler needs a max_history of 3 and more"
            )
    if not found:
        raise InvalidJob(f"job {job_name(job.type, job.id)} does not run: once takes the job that a handler gets")
    return found[:_MOST_RUNS]
