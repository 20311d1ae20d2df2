"""Processes over HTTP: who may look, who may ask, what is noted, and that they come back as they were."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from jobs_service import JobsClient, JobsService, ProcessGone, ProcessInfo, ProcessState
from jobs_service.http.state import ServerOptions
from jobs_service.model import HandlerSlots, ProcessAction, ProcessRequest
from tests.http.support import problem, running, served
from tests.http.test_wire import integers, texts, times, types

OPEN = ServerOptions(is_open=True)
NOBODY = "0123456789ab"


@asynccontextmanager
async def listed(jobs: JobsService) -> AsyncIterator[ProcessInfo]:
    """Run a handler in a service, and yield its process."""
    if "email" not in jobs.handlers:

        @jobs.handler("email")
        async def email() -> None:
            """Do nothing."""

    task = asyncio.create_task(jobs.run())
    try:
        yield await in_state(jobs, ProcessState.RUNNING)
    finally:
        task.cancel()
        await asyncio.wait([task])


async def in_state(jobs: JobsService | JobsClient, state: ProcessState) -> ProcessInfo:
    """Return the one process once it is in a state."""
    async with asyncio.timeout(30):
        while True:
            found = await jobs.processes()
            if found and found[0].state is state:
                return found[0]
            await asyncio.sleep(0.01)


handlers = st.builds(HandlerSlots, types, st.integers(0, 9), st.integers(0, 9))
requests = st.builds(ProcessRequest, st.sampled_from(ProcessAction), texts, times)
processes = st.builds(
    ProcessInfo,
    texts,
    texts,
    integers,
    texts,
    texts,
    texts,
    times,
    times,
    st.sampled_from(ProcessState),
    integers,
    integers,
    st.lists(handlers, max_size=3).map(tuple),
    integers,
    st.none() | requests,
)


async def test_it_is_shown_and_does_what_it_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    options = ServerOptions(authenticate=lambda scope: ("ada", "admin"), audit_log=str(file))
    async with served(options=options) as (jobs, client), listed(jobs) as process:
        [form] = (await client.get("/v1/processes")).json()["processes"]
        assert (form["id"], form["state"], form["role"], form["request"]) == (process.id, "running", "runner", None)
        assert form["handlers"] == [{"type": "email", "slots": 10, "taken": 0}]
        asked = await client.post(f"/v1/processes/{process.id}/quiet")
        assert (asked.status_code, asked.json()["state"]) == (200, "running")
        quiet = await in_state(jobs, ProcessState.QUIET)
        assert quiet.request is not None
        assert quiet.request.who == "ada"
        await client.post(f"/v1/processes/{process.id}/resume")
        await in_state(jobs, ProcessState.RUNNING)
        await client.post(f"/v1/processes/{process.id}/stop")
        noted = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(row["who"], row["action"], row["id"]) for row in noted] == [
            ("ada", f"{action}_process", process.id) for action in ("quiet", "resume", "stop")
        ]


async def test_who_may_only_write_may_look_and_ask_for_nothing() -> None:
    options = ServerOptions(authenticate=lambda scope: ("ada", "write"))
    async with served(options=options) as (jobs, client), listed(jobs) as process:
        assert (await client.get("/v1/processes")).status_code == 200
        for action in ProcessAction:
            problem(await client.post(f"/v1/processes/{process.id}/{action.value}"), 403, "forbidden")
        assert (await jobs.processes())[0].request is None
    async with served(options=replace(OPEN, read_only=True)) as (jobs, client), listed(jobs) as process:
        problem(await client.post(f"/v1/processes/{process.id}/stop"), 403, "read-only")
        assert (await jobs.processes())[0].request is None


@pytest.mark.parametrize("id", [NOBODY, "x", "%00", "json:7", "%27%3Cscript%3E", "0" * 5000])
async def test_who_is_not_there_is_a_problem(id: str) -> None:
    async with served() as (_, client):
        for action in ProcessAction:
            found = problem(await client.post(f"/v1/processes/{id}/{action.value}"), 404, "process-gone")
            assert len(found["detail"]) < 200


async def test_a_client_has_the_same_operations(address: str) -> None:
    async with (
        JobsService(address) as jobs,
        listed(jobs) as process,
        running(jobs) as url,
        JobsClient(url) as client,
    ):
        before, told, after = await jobs.processes(), await client.processes(), await jobs.processes()
        assert told in (before, after)  # a heartbeat may come in between
        assert (await client.quiet_process(process.id)).id == process.id
        await in_state(client, ProcessState.QUIET)
        await client.resume_process(process.id)
        await in_state(client, ProcessState.RUNNING)
        await client.stop_process(process.id)
        async with asyncio.timeout(30):
            while await client.processes():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        for ask in (client.quiet_process, client.resume_process, client.stop_process):
            with pytest.raises(ProcessGone, match=f"there is no process {process.id}"):
                await ask(process.id)
            with pytest.raises(ProcessGone):
                await ask("../../types/email")
