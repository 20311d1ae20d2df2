"""The end of a command: how it is stopped, and what it leaves running."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from jobs_service.runner.commands import Command, run_command
from tests.cli.support import is_alive
from tests.left_open import Open
from tests.runner.commands.programs import HANG, PAUSE, Fifo, children, failure, python, run

SHORT = 0.05
"""Seconds of grace where nobody makes use of it."""
# Says that it is there, says so when it gets SIGTERM, goes on when the test says so, and leaves a file.
CHECKPOINT = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
out = open(sys.argv[1], "w", buffering=1)
out.write(f"{os.getpid()}\\n")
signal.sigwait([signal.SIGTERM])
out.write("stopping\\n")
open(sys.argv[2]).read()
open(sys.argv[3], "w").write("checkpoint")
"""
# The child waits until its parent has gone.
FORK = """
import os, signal, sys
r, w = os.pipe()
leader = os.getpid()
if pid := os.fork():
    print(pid, flush=True)
    os._exit(0)
os.close(w)
"""


def wait_for(pid: int) -> None:
    """Reap a process that is ending, if it is ours to reap."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def wait_without_reaping(pid: int) -> None:
    """Wait until a process has exited, and leave its exit code to somebody else."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@dataclasses.dataclass
class Stopping:
    """A command that got SIGTERM, and waits."""

    task: asyncio.Task[Any]
    checkpoint: Path
    gate: Path
    pid: int

    def release(self) -> None:
        """Let it end."""
        # The command has opened its end, or is about to.
        with open(self.gate, "w") as gate:
            gate.write("go")


class TestStopping:
    """On cancellation, or out of time: asked first, then killed, and gone when the caller goes on."""

    async def test_a_command_that_runs_too_long_is_ended_and_fails(self, way: None) -> None:
        failed = await failure(*python(PAUSE), time_limit=SHORT)
        assert failed.result is not None
        assert (failed.result.exit_code, failed.result.signal) == (None, "SIGTERM")
        assert f"ran longer than its time_limit of {SHORT} s" in str(failed)

    async def test_what_a_command_says_when_its_time_is_out_is_kept(self) -> None:
        # Commands inherit what is blocked: so SIGTERM waits for this one, however long it takes to start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            code = "import signal, sys; signal.sigwait([signal.SIGTERM]); sys.exit('bye')"
            failed = await failure(*python(code), time_limit=SHORT)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert failed.result is not None
        assert (failed.result.exit_code, failed.result.stderr) == (1, "bye\n")
        assert str(failed).endswith("and was ended: bye")

    async def test_a_cancel_scope_of_anyio_waits_for_the_grace_without_spinning(
        self, fifo: Fifo, tmp_path: Path
    ) -> None:
        scope = anyio.CancelScope()
        async with stopping(fifo, tmp_path, scope) as command:
            scope.cancel()
            assert await fifo.line() == "stopping"
            for _ in range(100):
                await asyncio.sleep(0)
            assert command.task.cancelling() <= 1
            command.release()
            await command.task
        assert scope.cancelled_caught
        assert command.checkpoint.read_text() == "checkpoint"

    async def test_a_command_that_ignores_sigterm_is_killed(self, fifo: Fifo, way: None) -> None:
        code = f"import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SAY_PID}\n{PAUSE}"
        task = asyncio.create_task(run(*python(code, fifo.path), grace=SHORT))
        pid = int(await fifo.line())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(pid)

    async def test_no_moment_of_cancellation_leaves_anything(self, way: None) -> None:
        before = children()
        for steps in range(8):
            task = asyncio.create_task(run(*python(PAUSE), stdin="x" * 100_000))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert children() <= before


class TestWhatACommandLeavesRunning:
    @pytest.fixture(autouse=True)
    def orphans(self) -> Iterator[None]:
        """Inherit them, as process 1 of a container does: how soon the machine's own process 1 reaps is its affair."""
        with subreaper() if sys.platform == "linux" else contextlib.nullcontext():
            yield

    async def test_may_finish_its_output_within_the_grace(self) -> None:
        result = await run(*python(FORK + "os.read(r, 1); print('late')"))
        assert result.stdout.split()[1:] == ["late"]
        assert not is_alive(int(result.stdout.split()[0]))

    async def test_is_ended_at_once_when_it_holds_no_output(self) -> None:
        result = await run(*python(FORK + "os.closerange(0, 3); " + PAUSE))
        assert not is_alive(int(result.stdout))

    @pytest.mark.skipif(not hasattr(os, "waitid"), reason="waits for an end without taking the exit code")
    async def test_does_not_make_a_failure_of_a_success_when_the_time_is_out_meanwhile(
        self, fifo: Fifo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = f"{FORK}{SAY_LEADER}\n{PAUSE}"
        task = asyncio.create_task(run(*python(code, fifo.path), time_limit=HANG, grace=3 * HANG))
        wait_without_reaping(int(await fifo.line()))
        loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
        monkeypatch.setattr(loop, "time", lambda: now() + 2 * HANG)
        result = await task
        assert result.exit_code == 0
        assert not is_alive(int(result.stdout))

    async def test_is_let_alone_when_it_left_the_group(self) -> None:
        daemon = """
import os, signal
r, w = os.pipe()
if pid := os.fork():
    os.close(w)
    os.read(r, 1)
    print(pid, flush=True)
    os._exit(0)
os.setsid()
os.close(w)
signal.pause()
"""
        result = await run(*python(daemon), grace=SHORT)
        pid = int(result.stdout)
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(pid)

    async def test_is_reaped_by_a_runner_that_inherits_it(self) -> None:
        result = await run(*python(FORK + "os.closerange(0, 3); " + PAUSE))
        assert int(result.stdout) not in children()

    async def test_is_ended_when_it_holds_the_output_for_longer(self, way: None) -> None:
        result = await run(*python(FORK + PAUSE), grace=SHORT)
        assert not is_alive(int(result.stdout))

    async def test_is_ended_when_the_command_is_canceled(self, fifo: Fifo) -> None:
        code = f"import os, signal, sys\nif os.fork(): signal.pause()\n{SAY_PID}\nsignal.pause()"
        task = asyncio.create_task(run(*python(code, fifo.path)))
        child = int(await fifo.line())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(child)


SAY_PID = 'open(sys.argv[1], "w").write(f"{os.getpid()}\\n")'
SAY_LEADER = 'open(sys.argv[1], "w").write(f"{leader}\\n")'


@asynccontextmanager
async def stopping(
    fifo: Fifo, tmp_path: Path, scope: anyio.CancelScope | None = None, *, ends: bool = True
) -> AsyncIterator[Stopping]:
    """Start a command that ends on SIGTERM once it is released; it is gone afterwards."""
    gate, checkpoint = tmp_path / "gate", tmp_path / "checkpoint"
    os.mkfifo(gate)

    async def main() -> None:
        with scope or contextlib.nullcontext():
            await run_command(Command(python(CHECKPOINT, fifo.path, str(gate), str(checkpoint))), grace=HANG)

    before = Open.now()
    task = asyncio.create_task(main())
    command = Stopping(task, checkpoint, gate, int(await fifo.line()))
    yield command
    if ends:
        assert task.done()
        assert not is_alive(command.pid)
        assert not Open.now().since(before)


@contextmanager
def subreaper() -> Iterator[None]:
    """Have orphans among this process's descendants become its children, as they become those of process 1."""
    prctl = ctypes.CDLL(None).prctl
    pr_set_child_subreaper = 36
    assert prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(pr_set_child_subreaper, 0, 0, 0, 0)
