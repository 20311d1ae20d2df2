"""What must still end before a run can, and what must be so when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs_service.store.base import Transaction
from jobs_service.testing import Process
from tests.simulation.workloads.subscribers import Subscribers

if TYPE_CHECKING:
    from tests.simulation.run import Run


def still_open(run: Run) -> list[str]:
    """Return what must still end."""
    return [
        *_open_jobs(run),
        *_open_subscriptions(run),
        *(left for each in run.workloads for left in each.open()),
        *run.history.unread(),
    ]


def _open_jobs(run: Run) -> list[str]:
    return [f"{key} is {job.state}" for key, job in run.history.model.jobs.items() if job.state != "finished"]


def _open_subscriptions(run: Run) -> list[str]:
    subscribers = [each for each in run.workloads if isinstance(each, Subscribers)]
    processes = [str(process) for process in run.processes]
    return [f"{heard}" for each in subscribers for process in processes for heard in each.waiting(process)]


def check_end(run: Run) -> None:
    """Check what must be so when all processes of a run have ended."""
    left = run.world.left_behind()
    if left:
        run.complain(f"left behind: the tasks {left}")
    if not run.world.cluster.idle:
        run.complain("left behind: a watch, a transaction or a past state at the cluster")
    for text in run.world.unhandled:
        run.complain(f"unhandled: {text}")
    for complaint in run.calls.complaints():
        run.complain(complaint)
    for workload in run.workloads:
        for complaint in workload.check():
            run.complain(complaint)


async def check_store(run: Run) -> None:
    """Check what is in the store in the end, against the history."""

    async def look(process: Process) -> None:
        async with process.service(supervise=False) as jobs:

            async def everything(transaction: Transaction) -> list[tuple[bytes, bytes]]:
                return await transaction.get_range(b"", b"\xff")

            stored = dict(await jobs.store.read(everything))
            run.history.finish(stored)
            versions = run.world.cluster.versions
            if run.machine is not None and any(versions.get(key) != value for key, value in stored.items()):
                run.complain("torn: the store does not hold what was committed")

    inspector = run.begin("inspector", look)
    await inspector.ended()
    if inspector.failure is not None:
        run.complain(f"exception: the inspector failed: {inspector.failure!r}")
    for complaint in run.history.complaints:
        run.complain(f"history: {complaint}")
