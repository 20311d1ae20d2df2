"""Answers with long lists are made piece by piece, while the loop goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

import pytest

from jobs_service.http.endpoint import long_answer, pieces

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
