"""Whether a type is there: a mistyped name changes nothing; a new type is made when asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jobs_service.cli import exits
from jobs_service.cli.names import shown

if TYPE_CHECKING:
    from jobs_service import JobsService, JobTransaction


async def change_type(jobs: JobsService, type: Any, change: Callable[[JobTransaction], Awaitable[None]]) -> None:
    """Change a type in one transaction with the look whether it is there.

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
    """Give a type that has no activity timeout this one, in seconds."""
    from jobs_service import NoTypeTimeout

    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        await tx.set_type_timeout(type, timeout)


async def exists(tx: JobTransaction, type: Any) -> bool:
    """Whether somebody has made the type; one without an activity timeout may still have jobs, or be paused."""
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
