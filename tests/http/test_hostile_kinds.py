"""Hostile requests against a server on which everybody may do everything: nothing changes."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from collections import Counter

import httpx

from jobs_service import JobsService
from jobs_service.http import problems
from jobs_service.http.problems import KINDS
from jobs_service.http.state import ServerLimits, ServerOptions
from tests.contract.support import contents
from tests.http import hostile
from tests.http.hostile import Hostile
from tests.http.support import running

SEED = 16
COUNT = 300
AT_ONCE = 50
PATIENCE = 20.0
"""Seconds; only ends a request that would never end."""
MOST_GROWTH = 64 << 20
LIMITS = ServerLimits(body=hostile.BODY, body_time=0.3, poll_time=0.3)
KNOWN = {*KINDS, *problems.ERRORS}


def complaint(answer: bytes) -> str | None:
    """Return what is wrong with an answer to a hostile request; None if it is a problem, or nothing at all."""
    if not answer:
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status == 400 and body == b"Invalid HTTP request received.":
        return None
    if not 400 <= status < 600 or status == 500:
        return f"status {status}: {answer[:300]!r}"
    if b"content-type: application/problem+json" not in head.lower():
        return f"no problem: {answer[:300]!r}"
    found = json.loads(body)
    if found["type"].removeprefix("/problems/") not in KNOWN or found["status"] != status or "\n" in found["detail"]:
        return f"not as documented: {found}"
    return "a traceback" if b"Traceback" in body or b".py" in body else None


async def attacked(url: str) -> list[str]:
    """Send all hostile requests of a seed; return what was wrong with answers."""
    found = httpx.URL(url)
    places = asyncio.Semaphore(AT_ONCE)
    wrong: list[str] = []
    answered: Counter[str] = Counter()

    async def one(number: int, request: Hostile) -> None:
        async with places:
            try:
                answer = await hostile.sent(found.host, found.port or 0, request, PATIENCE)
            except TimeoutError:
                wrong.append(
                    f"{number} {request.kind}: no answer, and the connection stays open: {request.parts[0][:200]!r}"
                )
                return
        answered[request.kind] += bool(answer)
        said = complaint(answer)
        if said is not None:
            wrong.append(f"{number} {request.kind}: {said}; to {request.parts[0][:200]!r}")

    await asyncio.gather(*(one(*each) for each in enumerate(hostile.drawn(SEED, COUNT, hostile.OPEN))))
    assert sum(answered.values()) > COUNT // 3  # or nobody has listened
    return wrong


async def test_hostile_requests_are_refused_and_change_nothing() -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "kept", {"n": 1})
        async with running(jobs, ServerOptions(is_open=True, limits=LIMITS)) as url:
            before = await contents(jobs.store)
            gc.collect()
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            wrong = await attacked(url)
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used)
            assert wrong == []
            assert await contents(jobs.store) == before
            assert grown < MOST_GROWTH
            async with httpx.AsyncClient(base_url=url) as client:
                assert (await client.get("/livez")).status_code == 200


# What these requests have found


async def test_a_request_whose_body_does_not_come_changes_nothing_though_nothing_in_it_is_wanted() -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        async with running(jobs, ServerOptions(is_open=True, limits=LIMITS)) as url:
            found = httpx.URL(url)
            whole = hostile.post("/v1/types/email/pause", b"{} ")
            answer = await hostile.sent(found.host, found.port or 0, Hostile("pause", [whole[:-1]]), PATIENCE)
            assert b" 408 " in answer
            assert not await jobs.paused("email")
            await hostile.sent(found.host, found.port or 0, Hostile("pause", [whole]), PATIENCE)
            assert await jobs.paused("email")
