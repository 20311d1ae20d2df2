"""Many threads at once, callers that are killed, and a fork in the middle: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from jobs_service import JobId, JobState, ServiceClosed
from jobs_service.batching import Answer
from jobs_service.blocking import LoopCalls
from jobs_service.sync import JobsService
from tests.left_open import Open
from tests.store.lmdb.lmdb_process import ROOT

SECONDS = float(os.environ.get("SYNC_SECONDS", "0"))
"""How long the threads go on with new jobs, after three each; `scripts/test --long threads` sets it."""
THREADS = 200 if SECONDS else 60


class Killed(BaseException):
    """What a caller is killed with."""


def kill(thread: threading.Thread) -> None:
    """Have a thread raise Killed, as soon as it runs Python code again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Killed))


def started(work: Callable[[int], None], count: int = THREADS) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_threads_add_look_and_wait_while_callers_are_killed_and_the_process_forks(tmp_path: Path) -> None:
    before = Open.now()
    address = f"lmdb:{tmp_path / 'store'}"
    answered: list[str] = []
    with JobsService(address) as jobs:
        jobs.set_type_timeout("work", 60)

        @jobs.handler("work", slots=50)
        def work(number: int) -> int:
            return number + 1

        running = threading.Thread(target=jobs.run, daemon=True)
        running.start()
        end = time.monotonic() + SECONDS

        def call(number: int) -> None:
            for turn in itertools.count():
                if turn >= 3 and time.monotonic() >= end:
                    return
                id = f"{number}-{turn}"
                try:
                    jobs.enqueue(work, number, id=id)
                    answered.append(id)
                    assert jobs.get("work", id).data == number
                    assert jobs.result(work, id, timeout=90) == number + 1
                except Killed:
                    return

        threads = started(call)
        children = []
        for count, thread in enumerate(random.Random(7).sample(threads[1:], 20)):
            kill(thread)
            threads[0].join(SECONDS / 20)
            if count % 10 == 5:
                if (pid := os.fork()) == 0:
                    _in_child(jobs, f"child-{count}")
                children.append(pid)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
        for thread in threads:
            thread.join()
        assert len(answered) >= 3 * (THREADS - 20)
        for id in (*answered, "child-5", "child-15"):
            assert jobs.wait("work", id, "finished", timeout=60)
    running.join()
    assert not Open.now().since(before)


def _in_child(jobs: JobsService, id: str) -> None:
    """Use the service in a forked child, and end it."""
    status = 1
    try:
        assert threading.active_count() == 1
        job = jobs.enqueue("work", 1, id=id)
        jobs.result("work", job.id, timeout=60)  # its parent runs it
        jobs.close()
        assert threading.active_count() == 1
        status = 0
    finally:
        os._exit(status)


def test_a_killed_caller_that_waits_for_a_job_takes_none(tmp_path: Path) -> None:
    with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        jobs.set_type_timeout("work", 60)
        begun: SimpleQueue[int] = SimpleQueue()  # not a barrier: one cannot be killed within it
        ended: list[JobId] = []

        def wait(number: int) -> None:
            with contextlib.suppress(Killed):
                begun.put(number)
                job = jobs.accept("work")
                assert job is not None
                job.finish()
                ended.append(job.id)

        threads = started(wait, 20)
        for _ in threads:
            begun.get()
        for thread in threads[::2]:  # it notices that when its call ends, so with a job that is now nobody's
            kill(thread)
        for number in range(40):
            jobs.add("work", str(number))
        for thread in threads:
            thread.join()
        jobs.close()
        states = Counter(job.state for job in jobs.list("work"))
        assert states == {JobState.PENDING: 30, JobState.FINISHED: 10}
        assert len(ended) == 10


def test_an_interrupted_call_is_canceled_before_its_error_is_raised(tmp_path: Path) -> None:
    begun, ended = threading.Event(), []
    main = threading.main_thread().ident
    assert main is not None

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("canceled")

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(main, signal.SIGINT)

    with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        jobs.set_type_timeout("work", 60)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            jobs._where().call(for_ever)
        assert ended == ["canceled"]
        thread.join()
        assert jobs.types() == ["work"]


async def test_a_call_that_is_canceled_before_its_first_step_ends() -> None:
    calls = LoopCalls(asyncio.get_running_loop())
    begun: list[bool] = []

    async def never() -> None:
        begun.append(True)

    thread = threading.Thread(target=calls.call, args=(never,), daemon=True)
    thread.start()
    while not calls._new:
        time.sleep(0.001)  # noqa: ASYNC251 - so that the loop does not begin it meanwhile
    call = calls._new[0]
    calls._begin_all()
    call.cancel()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert not begun


def test_the_loop_is_woken_for_a_call_though_the_thread_that_was_to_do_it_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        calls = jobs._where()
        with monkeypatch.context() as dying:
            dying.setattr(calls, "_tell", lambda _: exec("raise Killed", {"Killed": Killed}))
            with contextlib.suppress(Killed):
                jobs.types()
        assert jobs.types() == []


def test_operations_begin_together_when_those_before_them_are_over_or_interrupted() -> None:
    main = threading.main_thread().ident
    assert main is not None
    with start_blocking_portal() as portal:
        loop = portal.call(asyncio.get_running_loop)
        calls = LoopCalls(loop)
        begun: SimpleQueue[tuple[int, Answer]] = SimpleQueue()
        results: dict[int, object] = {}

        def call(number: int) -> None:
            results[number] = calls.operate(lambda answer: (number, answer), begun.put, one_after_the_other=True)

        def wait_for_others(count: int) -> None:
            while sum(len(flight.waiting) for flight in [*calls._flights.values()]) < count:
                time.sleep(0.001)
            assert begun.empty()

        def interrupt() -> None:
            assert begun.get()[0] == 7
            threads.extend(started(call, 3))
            wait_for_others(3)
            signal.pthread_kill(main, signal.SIGINT)

        threads: list[threading.Thread] = []
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            call(7)
        interrupting.join()
        together = [begun.get() for _ in range(3)]
        threads.append(threading.Thread(target=call, args=(3,)))
        threads[-1].start()
        wait_for_others(1)
        for number, answer in together:
            loop.call_soon_threadsafe(answer.set_result, f"result {number}")
        number, answer = begun.get()
        loop.call_soon_threadsafe(answer.set_result, f"result {number}")
        for thread in threads:
            thread.join()
        assert results == {each: f"result {each}" for each in range(4)}
        assert portal.call(lambda: calls._flights) == {}


def run(program: str, path: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a program with a store; return exit code and outputs."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, f"lmdb:{path / 'store'}", *arguments]
    # coverage's own end of a forked child fails now and then while threads of the child still run, and tells nobody.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 90, "start_new_session": True}
    done = subprocess.run(command, cwd=ROOT, env=env, **options)
    # A slow machine is no fault of the program: `-X dev` has asyncio tell of each step that took long.
    errors = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("Executing <")]
    return done.returncode, done.stdout, "".join(errors)


HEAD = """
import logging, os, signal, sys, threading
logging.getLogger("asyncio").setLevel("ERROR")  # it tells of slow steps, of which a busy machine has many
from jobs_service.sync import JobsService
jobs = JobsService(sys.argv[1])
jobs.set_type_timeout("work", 60)
jobs.add("work", "a", if_exists="ignore")
"""

ENDS = {
    "the last line": ("print('done')", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "an exception": ("1 / 0", 1, "ZeroDivisionError"),
    "Ctrl-C in a call": (
        "threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start(); jobs.wait('work', 'a', 'running')",
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
    "a daemon thread that waits": (
        "threading.Thread(target=jobs.wait, args=('work', 'a', 'running'), daemon=True).start()",
        0,
        "ServiceClosed",
    ),
    "a daemon thread that runs the jobs": (
        "jobs.handler('work')(lambda: 1)\n"
        "threading.Thread(target=jobs.run, daemon=True).start(); jobs.result('work', 'a')",
        0,
        "",
    ),
    "a thread that goes on": (
        "threading.Thread(target=lambda: [jobs.add('work', str(number)) for number in range(300)]).start()",
        0,
        "",
    ),
    "a subscription that is left": ("next(jobs.subscribe('work', 'a')); next(jobs.list('work'))", 0, ""),
    "a forked child": (
        "if os.fork(): print(os.waitstatus_to_exitcode(os.wait()[1]))\nelse: jobs.add('work', 'b')",
        0,
        "",
    ),
    "a child that does nothing": ("if os.fork(): print(os.waitstatus_to_exitcode(os.wait()[1]))", 0, ""),
    "children of a process whose threads log": (
        "import structlog; log = structlog.get_logger()\n"
        "talk = lambda: [log.info('x') for _ in range(10**6)]\n"
        "for _ in range(3): threading.Thread(target=talk, daemon=True).start()\n"
        "for _ in range(20):\n"
        "    if not (child := os.fork()): log.info('child'); os._exit(0)\n"
        "    os.waitpid(child, 0)",
        0,
        "",
    ),
    "multiprocessing": (
        "from multiprocessing import get_context\n"
        "child = get_context('fork').Process(target=jobs.add, args=('work', 'b'))\n"
        "child.start(); child.join(); assert not child.exitcode, child.exitcode; jobs.get('work', 'b')",
        0,
        "",
    ),
    "a use at the very end": ("import atexit; atexit.register(lambda: print(jobs.get('work', 'a').id))", 0, ""),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_however_it_ends_and_leaves_the_store_in_order(end: str, tmp_path: Path) -> None:
    program, code, said = ENDS[end]
    found = run(HEAD + program, tmp_path)
    assert found[0] == code, found
    assert (said in found[2]) if said else found[2] == "", found
    locks = tmp_path / "store" / "processes"
    with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        assert jobs.get("work", "a").id == "a"
        # Its own, and the one that all share: each process has removed its own, or this one does so for it.
        latest = time.monotonic() + 30
        while len([*locks.iterdir()]) > 2 and time.monotonic() < latest:
            time.sleep(0.01)
        assert len([*locks.iterdir()]) == 2


def test_two_threads_that_fork_at_once_leave_no_lock_of_the_log_held(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys, threading, time
os.register_at_fork(before=lambda: time.sleep(1.3))  # longer than a fork waits for the other one's locks
from jobs_service.sync import JobsService
import jobs_service, structlog
log = structlog.get_logger()
log.info("before")
async def opened():
    async with jobs_service.JobsService(sys.argv[1]):
        pass
asyncio.run(opened())  # the store's hooks, which have forks wait for each other, so come after those of the service
jobs = JobsService(sys.argv[1])
jobs.set_type_timeout("work", 60)
def fork(delay):
    time.sleep(delay)
    if not (child := os.fork()):
        log.info("child"); os._exit(0)
    os.waitpid(child, 0)
threads = [threading.Thread(target=fork, args=(delay,)) for delay in (0, 0.05)]
for thread in threads: thread.start()
for thread in threads: thread.join()
log.info("parent")
"""
    found = run(program, tmp_path)
    assert found[0] == 0, found


def test_a_call_whose_loop_has_ended_raises() -> None:
    loop = asyncio.new_event_loop()
    calls = LoopCalls(loop)

    async def nothing() -> None:
        return

    said: list[str] = []

    def call() -> None:
        try:
            calls.call(nothing)
        except ServiceClosed as error:
            said.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    while not calls._new:
        time.sleep(0.001)
    loop.close()
    thread.join()
    call()
    assert ["its event loop has ended" in each for each in said] == [True, True]
