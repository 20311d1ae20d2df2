"""Functions of isolated handlers, which the processes of a pool import by name."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from typing import Any

from jobs_service import BlockingJob, Discard, Job, Retry, Snooze


def square(number: int) -> dict[str, int]:
    return {"square": number * number, "pid": os.getpid()}


def nothing() -> None:
    """Return at once."""


def operate(job: BlockingJob) -> Job:
    """Use the operations of a job."""
    if job.data == "first":
        job.resubmit(data="second")
        return job.release()
    job.progress(1, 2, "half")
    job.update("updated")
    return job.finish(result=[job.data, job.attempts, len(job.lock)])


def transact(job: BlockingJob) -> None:
    job.finish_with(lambda tx: None)


def segmentation_fault() -> None:
    ctypes.string_at(0)


def exit_at_once() -> None:
    os._exit(3)


def exit_politely() -> None:
    sys.exit("enough")


def endless_loop_in_c() -> None:
    pow(3, 10**10)


def many_children(job: BlockingJob) -> None:
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(50)]
    job.update([os.getpid(), *(child.pid for child in children)])
    threading.Event().wait()


def leave_a_child(job: BlockingJob) -> int:
    # The shell ends at once, and its child has no parent then.
    done = subprocess.run(["sh", "-c", "sleep 1000 >&- & echo $!"], stdout=subprocess.PIPE, check=True)
    job.update([os.getpid(), int(done.stdout)])
    return 7


def two_gigabytes() -> int:
    return len(bytearray(2_000_000_000))


def unpicklable() -> Any:
    return threading.Lock()


def close_the_connection() -> None:
    os.closerange(3, 256)
    threading.Event().wait()


def killed(pids: list[int]) -> None:
    os.kill(os.getpid(), 9)


def raise_it(name: str) -> None:
    raise {"Retry": Retry(5, "busy"), "Discard": Discard("no"), "Snooze": Snooze("1h"), "OSError": OSError("disk")}[
        name
    ]


def wait_for_stop(job: BlockingJob) -> str | None:
    job.update([os.getpid(), os.getppid()])
    job.wait_for_stop(1000)
    return None if job.priority else "far enough"


def use_after_stop(job: BlockingJob) -> None:
    job.update([os.getpid()])
    job.wait_for_stop(1000)
    job.update("too late")


def never_looks(job: BlockingJob) -> None:
    job.update([os.getpid()])
    threading.Event().wait()
