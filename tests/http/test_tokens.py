"""The tokens that a server knows, while they change."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobsService
from jobs_service.http.tokens import Tokens, add_token
from jobs_service.layer.rows import TokenRow


async def test_tokens_that_were_read_before_one_was_removed_do_not_bring_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with JobsService("memory:") as jobs:
        token = await add_token(jobs, "ada", "admin")
        was_removed, was_read, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        tokens = Tokens(jobs, lambda names: was_removed.set())
        assert await tokens.of_token(token) is not None
        read = jobs.remote.tokens

        async def late() -> list[TokenRow]:
            rows = await read()
            was_read.set()
            await goes_on.wait()
            return rows

        monkeypatch.setattr(jobs._remote, "tokens", late)
        async with asyncio.timeout(20):
            asking = asyncio.create_task(tokens.of_token("jst_nobody"))
            await was_read.wait()
            await jobs.remote.remove_token("ada")
            await was_removed.wait()
            goes_on.set()
            assert await asking is None
            assert "ada" not in await tokens.known()
            assert await tokens.of_token(token) is None
        await tokens.close()
