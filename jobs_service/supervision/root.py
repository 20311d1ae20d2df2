"""The boundary between a supervisor tree and the program around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobs_service.supervision.process import Process, stop_in_order


async def run_tree(supervisor: Process, *, started: Callable[[], object] | None = None) -> None:
    """Start a root supervisor, and wait until it ends. Cancel the caller to stop the tree.

    Everything in the tree has ended, in reverse order of its start, before this returns or raises, however often the
    caller is canceled meanwhile. It returns if the supervisor itself was stopped.

    Args:
        supervisor: not yet started.
        started: called once, when the whole tree has initialized; an exception from it stops the tree.

    Raises:
        SupervisorFailed: the tree did not start, or failed more often than its restart intensity allows.
        Killed: the supervisor's own task was canceled from outside.
    """
    try:
        await supervisor.start()
        if started is not None:
            started()
        cause = await supervisor.ended()
    except BaseException as error:
        canceled = await stop_in_order([supervisor])
        if canceled is not None and not isinstance(error, asyncio.CancelledError):
            raise canceled from error
        raise
    if cause is not None:
        raise cause
