"""Answers with long lists are made piece by piece, while the loop goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

import pytest

from jobs_service.http.endpoint import long_answer, pieces
from tests.http.support import also_on_a_cluster, listening

MOST_AT_ONCE = 40
"""Forms of a kilobyte each that are made before anything else gets its turn."""


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 1000])
async def test_pieces_together_are_the_object(count: int) -> None:
    forms = [{"n": n, "text": "x" * 1000} for n in range(count)]
    assert json.loads(b"".join([piece async for piece in pieces("jobs", forms)])) == {"jobs": forms}
    more = {"next": None, "more": True}
    assert json.loads(b"".join([piece async for piece in pieces("jobs", forms, more)])) == {"jobs": forms, **more}


async def test_others_have_their_turn_while_a_long_answer_is_made() -> None:
    made = 0
    seen: list[int] = []

    def forms() -> Iterator[object]:
        nonlocal made
        for n in range(1000):
            made = n
            yield {"text": "x" * 1000}

    async def other() -> None:
        while True:
            seen.append(made)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    response = await long_answer("jobs", forms())
    assert made < 4 * MOST_AT_ONCE  # the rest is made while it is sent
    async for _ in response.body_iterator:  # type: ignore[attr-defined]
        pass
    task.cancel()
    assert made == 999
    assert max(after - before for before, after in itertools.pairwise(seen)) <= MOST_AT_ONCE


@also_on_a_cluster
async def test_counts_and_types_of_many_types_arrive_whole() -> None:
    async with listening() as (jobs, client):
        names = [f"type-{n:04}" for n in range(400)]
        for name in names:
            await jobs.set_type_timeout(name, 30)
        await jobs.add(names[7], "a")
        answer = await client.get("/v1/counts")
        assert "content-length" not in answer.headers  # it is sent while it is made
        found = answer.json()["types"]
        assert [each["type"] for each in found] == names
        assert [each["ready"] for each in found] == [int(n == 7) for n in range(400)]
        assert [each["type"] for each in (await client.get("/v1/types")).json()["types"]] == names
        short = await client.get(f"/v1/counts?type={names[7]}")
        assert short.headers["content-length"] == str(len(short.content))
