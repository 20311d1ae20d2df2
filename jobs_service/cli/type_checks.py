"""Checks that a type exists, so that a mistyped name changes nothing, and makes new types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jobs_service.cli import exits
from jobs_service.names import shown

if TYPE_CHECKING:
    from jobs_service import JobsService, JobTransaction


async def change_type(jobs: JobsService, type: Any, change: Callable[[JobTransaction], Awaitable[None]]) -> None:
    """Change a type, and check in the same transaction that it exists.

    Raises:
        AnswerIsNo: there is no such type.
    """

    async def work(tx: JobTransaction) -> None:
        if not await exists(tx, type):
            raise exits.AnswerIsNo(f"there is no type {shown(type)}")
        await change(tx)

    await jobs.transact(work)


async def require_type(jobs: JobsService, type: Any) -> None:
    """Raise AnswerIsNo if there is no such type."""

    async def nothing(_: JobTransaction) -> None:
        pass

    await change_type(jobs, type, nothing)


async def ensure_type(tx: JobTransaction, type: Any, timeout: float) -> None:
    """Give a type this activity timeout, in seconds, unless it has one."""
    from jobs_service import NoTypeTimeout

    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        await tx.set_type_timeout(type, timeout)


async def exists(tx: JobTransaction, type: Any) -> bool:
    """Return whether the type exists: it has an activity timeout or jobs, or it is paused."""
    from jobs_service import NoTypeTimeout

    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        if await tx.paused(type):
            return True
        async for _ in tx.list(type, page_size=1):
            return True
        return False
    return True
