"""Functions of isolated handlers, which the processes of a pool import by name."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from jobs_service import BlockingJob, Discard, Job, JobsError, Retry, Snooze


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


LEFT: list[str] = []
HAS_TRIED = threading.Event()


def leave(job: BlockingJob, what: str) -> Any:
    """Leave a fork or a thread behind that uses the job, or look what has become of the thread."""
    if what == "look":
        HAS_TRIED.wait(60)
        return LEFT
    if what.startswith("/"):
        threading.Thread(target=note_later, args=[job, what], daemon=True).start()
    elif what == "thread":
        threading.Thread(target=finish_later, args=[job], daemon=True).start()
        job.progress(1)
    elif not (child := os.fork()):
        try:
            job.progress(2)
        except JobsError:
            return "child's"
        os._exit(9)
    else:
        assert os.waitpid(child, 0)[1] == 0
    return "own"


def finish_later(job: BlockingJob) -> None:
    job.wait_for_stop(60)
    try:
        job.finish(result="of another job")
    except JobsError as error:
        LEFT.append(type(error).__name__)
    HAS_TRIED.set()


def note_later(job: BlockingJob, path: str) -> None:
    Path(path).write_text(str(job.wait_for_stop(600)))


class Unreadable(Exception):
    """Its pickle has one argument."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)


def update_unreadable(job: BlockingJob) -> None:
    job.update(Unreadable(1, 2))


def update_much(job: BlockingJob) -> None:
    job.update("x" * 5_000_000)


def return_much() -> str:
    return "x" * 5_000_000


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
