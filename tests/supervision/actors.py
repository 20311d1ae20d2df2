"""Actors for the tests of actors."""

from __future__ import annotations

import asyncio
from typing import Any

from jobs_service.supervision import Actor


class Echo(Actor):
    """Answers each message with itself, after as many seconds as it says when it is a number."""

    async def handle(self, message: Any) -> Any:
        if isinstance(message, float):
            await asyncio.sleep(message)
        return message
