"""`processes`: who runs handlers, and what each is asked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jobs_service import JobsService, ProcessState
from jobs_service.layer import rows as process_rows
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model.process import OutboxInfo
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows
from tests.layer.processes import process_row

ID = "0123456789ab"


def put(store: str, **more: Any) -> None:
    """Write the row of a process that was heard of just now."""

    async def work(jobs: JobsService) -> None:
        async def write(unit: UnitOfWork) -> None:
            process_rows.write(unit, process_row(ID, **{"heard": time.time(), **more}))

        await jobs._access.transact(write)

    arrange(store, work)


def asked(store: str) -> tuple[str, str] | None:
    """Return what the process was asked, and by whom."""

    async def look() -> tuple[str, str] | None:
        async with JobsService(store, supervise=False) as jobs:
            [process] = await jobs.processes()
            return None if process.request is None else (process.request.action.value, process.request.who)

    return asyncio.run(look())


def test_processes_are_shown_with_what_they_run(invoke: Invoke, email: str) -> None:
    assert invoke("processes", "--store", email).out == (
        "no process runs handlers; jobs-service serve MODULE:ATTR does\n"
    )
    assert invoke("processes", "-o", "json", "--store", email).out == ""
    put(email, started=time.time() - 7500, version="0.0.9")
    heading, line = rows(invoke("processes", "--store", email).out)
    assert heading == ["ID", "STATE", "WORKER", "ROLE", "VERSION", "UP", "HEARD", "TAKEN", "HANDLERS"]
    assert line[:6] == [ID, "running", "web-1:4711", "runner", "0.0.9", "2h05m"]
    assert line[6].endswith("s")
    assert line[7:] == ["2/7", 'json:["a",{"bytes":"62"}],', "email"]
    [row] = invoke("processes", "-o", "json", "--store", email).json_lines
    assert (row["host"], row["pid"], row["request"]) == ("web-1", 4711, None)
    assert row["handlers"][1] == {"type": "email", "slots": 2, "taken": 0}


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("quiet", "takes no more jobs; those that run go on"),
        ("resume", "takes jobs again"),
        ("stop", "ends; its running jobs get their grace"),
    ],
)
def test_one_is_asked_something_by_whoever_runs_the_verb(invoke: Invoke, email: str, action: str, said: str) -> None:
    put(email)
    assert invoke("processes", action, ID, "--store", email).out == f"process {ID} (web-1:4711) {said}\n"
    request = asked(email)
    assert request is not None
    assert request[0] == action
    assert "@" in request[1]
    told = invoke("processes", action, ID, "-o", "json", "--store", email).json
    assert (told["id"], told["asked"], told["before"]["request"]["action"]) == (ID, action, action)


def test_who_is_not_there_has_died_or_stops_is_refused_in_one_line(invoke: Invoke, email: str) -> None:
    for id in (ID, "nobody", "\x1b[2J"):
        ended = invoke("processes", "stop", id, "--store", email)
        assert ended.code == 1
        assert ended.error.startswith("there is no process ")
    put(email, instance=b"12345678")
    ended = invoke("processes", "quiet", ID, "--store", email)
    assert ended.code == 1
    assert ended.error.startswith(f"process {ID} has died; it was heard of last at 2")
    assert rows(invoke("processes", "--store", email).out)[1][1] == "dead"
    put(email, state=ProcessState.STOPPING)
    invoke("processes", "stop", ID, "--store", email)
    assert invoke("processes", "quiet", ID, "--store", email).error == (
        f"process {ID} was asked to stop before, and ends"
    )


def test_stats_and_health_tell_the_lag_of_the_outboxes_that_processes_relay(invoke: Invoke, email: str) -> None:
    put(email, outboxes=(OutboxInfo("sqlite:a.db", 3, 75.0, 1), OutboxInfo("sqlite:b\x1b.db", error="it is\naway")))
    said = invoke("stats", "--store", email)
    first, second = said.out.splitlines()[-2:]
    assert first == r"outbox sqlite:b\u001b.db: 0 rows: nothing is moved: it is\u000aaway"
    assert second == "outbox sqlite:a.db: 3 rows, the oldest for 1m15s (1 set aside)"
    assert second in invoke("health", "--store", email).error
    for verb in ("stats", "top"):
        *_, last = invoke(verb, "-o", "json", "--store", email).json_lines
        assert last == {"outbox": "sqlite:a.db", "rows": 3, "oldest": 75.0, "set_aside": 1, "error": ""}
    assert "outbox" not in invoke("stats", "email", "--store", email).out
