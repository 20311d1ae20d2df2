"""Runs transaction functions whose reads are answered at once, and refuses all other awaits."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from jobs_service.errors import StoreError, TransactionTooOld, shown
from jobs_service.store.base import Limits

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a never suspending coroutine to its end, and return its result.

    Stores that answer every read at once run transaction functions with this, on any thread.

    Raises:
        StoreError: it awaited something else than its transaction, or is no coroutine.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except (RuntimeError, AttributeError) as error:
        if not isinstance(coroutine, Coroutine):
            raise no_coroutine(coroutine) from error
        if _needs_a_loop(error):
            raise foreign_await("something that needs the event loop") from error
        raise
    raise stray_await(coroutine, awaited)


def stray_await(coroutine: Coroutine[Any, Any, Any], awaited: object) -> StoreError:
    """Close a coroutine with a foreign await, and return the error for it.

    Args:
        coroutine: the suspended coroutine of a transaction function.
        awaited: the object that it awaits.
    """
    # It may await something else while it unwinds, or fail: the error must name the first await.
    with contextlib.suppress(Exception):
        coroutine.close()
    return foreign_await(shown(awaited, 150) if awaited is not None else "a bare yield, such as asyncio.sleep(0)")


def ran_too_long(seconds: float, limits: Limits) -> TransactionTooOld:
    """Return the error for a transaction function that ran for so many seconds."""
    return TransactionTooOld(
        f"transaction_too_old (1007): a transaction function ran for {seconds:.1f} s; the limit is {limits.seconds:g} s"
    )


def no_coroutine(returned: object) -> StoreError:
    """Return the error for a transaction function that returns no coroutine."""
    return StoreError(f"a transaction function must return a coroutine, as an async def does, not {shown(returned)}")


def foreign_await(what: str) -> StoreError:
    """Return the error for a transaction function that awaits anything but its transaction."""
    return StoreError(
        f"a transaction function may await nothing but its transaction; this one awaited {what}. "
        "Do it before or after transact()"
    )


def _needs_a_loop(error: Exception) -> bool:
    """Return whether the error comes from asyncio, anyio or sniffio, called without a running loop."""
    if "event loop" in str(error):  # said by functions written in C, which leave no frame
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = str(frame.tb_frame.f_globals.get("__name__")) if frame is not None else ""
    return module.partition(".")[0] in ("asyncio", "anyio", "sniffio")
