"""A daemon that is killed under load: nothing that was answered is lost, and workers go on with their locks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx

from jobs_service import JobsService
from jobs_service.http.tokens import add_token
from tests.cli.support import HANG, event_named, free_port, started

JOBS = "/v1/types/email/jobs"


async def token_of(store: str) -> dict[str, str]:
    """Return headers with a token that holds whichever daemon is asked."""
    async with JobsService(store, supervise=False) as jobs:
        return {"Authorization": f"Bearer {await add_token(jobs, 'test', 'write')}"}


@contextmanager
def daemon(store: str, port: int, cwd: Path) -> Iterator[Popen[str]]:
    """Run a daemon at a port for the block's time."""
    with started("--store", store, "serve", "--http", f"127.0.0.1:{port}", cwd=cwd) as process:
        try:
            event_named(process, "serving")
            yield process
        finally:
            process.kill()


async def test_what_was_answered_is_there_after_a_kill(lasting: str, tmp_path: Path) -> None:
    port = free_port()
    added: set[str] = set()
    held: dict[str, str] = {}
    ended: set[str] = set()
    enough = asyncio.Event()

    async def add(client: httpx.AsyncClient, number: int) -> None:
        """Add jobs one by one, until the daemon is there no more."""
        for count in range(100_000):
            id = f"{number}-{count}"
            try:
                answer = await client.post(JOBS, json={"id": id, "data": {"n": count}})
            except httpx.TransportError:
                return
            assert answer.status_code == 201
            added.add(id)

    async def stream(client: httpx.AsyncClient) -> None:
        """Add jobs by lines."""

        async def lines() -> Any:
            for count in range(100_000):
                yield json.dumps({"id": f"line-{count}"}).encode() + b"\n"
                await asyncio.sleep(0)

        try:
            headers = {"Content-Type": "application/x-ndjson"}
            async with client.stream("POST", JOBS, content=lines(), headers=headers) as answer:
                async for line in answer.aiter_lines():
                    added.add(json.loads(line)["id"])
        except httpx.TransportError:
            return

    async def work(client: httpx.AsyncClient) -> None:
        """Take jobs, and end every other one."""
        while True:
            try:
                answer = await client.post("/v1/types/email/accept", json={"timeout": 5, "limit": 5})
                for job in answer.json()["jobs"]:
                    held[job["id"]] = job["lock"]
                    if len(held) % 2:
                        path = f"{JOBS}/{job['id']}/finish"
                        done = await client.post(path, json={"lock": job["lock"], "result": job["id"]})
                        assert done.json()["outcome"] == "succeeded"
                        ended.add(job["id"])
                    if len(ended) >= 10 and len(added) >= 100:
                        enough.set()
            except httpx.TransportError:
                return

    headers = await token_of(lasting)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG, headers=headers) as client:
        with daemon(lasting, port, tmp_path) as process:
            (await client.put("/v1/types/email", json={"timeout": 300})).raise_for_status()
            tasks = [add(client, 0), add(client, 1), stream(client), work(client), work(client)]
            running = [asyncio.create_task(each) for each in tasks]
            async with asyncio.timeout(HANG):
                await enough.wait()
                process.kill()
                await asyncio.gather(*running)
        with daemon(lasting, port, tmp_path) as process:
            # Who holds a job goes on, at the next daemon.
            left = [id for id in held if id not in ended]
            for id in left[:10]:
                answer = await client.post(f"{JOBS}/{id}/finish", json={"lock": held[id], "result": id})
                # Only of what was under way as it was killed nobody knows how it ended.
                assert answer.status_code in (200, 409)
                if answer.status_code == 200:
                    ended.add(id)
    async with JobsService(lasting) as jobs:
        found = {job.id: job async for job in jobs.list("email")}
    assert added <= found.keys()
    assert {id for id in ended if found[id].result != id} == set()


async def test_a_list_with_a_key_is_added_once_however_its_daemon_ends(lasting: str, tmp_path: Path) -> None:
    port = free_port()
    bodies = [{"jobs": [{"id": f"{number}-{n}"} for n in range(20)]} for number in range(200)]

    async def post(client: httpx.AsyncClient, number: int) -> int | None:
        """Send a list; return the status, None where no answer came."""
        try:
            answer = await client.post(JOBS, json=bodies[number], headers={"Idempotency-Key": f"list-{number}"})
        except httpx.TransportError:
            return None
        return answer.status_code

    async def post_all(client: httpx.AsyncClient) -> None:
        for number in range(len(bodies)):
            answers[number] = await post(client, number)
            if number == 5:
                enough.set()
            if answers[number] is None:
                return

    answers: dict[int, int | None] = {}
    enough = asyncio.Event()
    headers = await token_of(lasting)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG, headers=headers) as client:
        with daemon(lasting, port, tmp_path) as process:
            (await client.put("/v1/types/email", json={"timeout": 300})).raise_for_status()
            running = asyncio.create_task(post_all(client))
            async with asyncio.timeout(HANG):
                await enough.wait()
                process.kill()
                await running
        with daemon(lasting, port, tmp_path):
            again = {number: await post(client, number) for number in answers}
    # What was answered is there; of the last one it is not known, and asked for again.
    assert {number: status for number, status in again.items() if answers[number] == 201 and status != 200} == {}
    assert set(again.values()) <= {200, 201}
    async with JobsService(lasting) as jobs:
        assert {job.id async for job in jobs.list("email")} == {f"{n}-{each}" for n in answers for each in range(20)}
