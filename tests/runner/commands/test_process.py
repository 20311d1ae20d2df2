"""Commands, as real processes: what they get, what is kept of them, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from jobs_service import json_data
from jobs_service.errors import shown
from jobs_service.runner.commands import Command, CommandFailed, CommandResult, run_command

HANG = 60.0
"""Seconds of grace where a correct command ends by itself."""

SHORT = 0.05
"""Seconds of grace where nobody makes use of it."""

PAUSE = "import signal; signal.pause()"

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


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """Return the argument list that runs Python code, started as fast as it can be."""
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


async def run(*argv: str, capture: int = 64_000, grace: float = HANG, **fields: Any) -> CommandResult:
    """Run a command and see that it leaves neither file descriptors nor threads, however it ends."""
    before = open_files(), threading.active_count()
    try:
        return await run_command(Command(argv, **fields), capture=capture, grace=grace)
    finally:
        assert (open_files(), threading.active_count()) == before


async def failure(*argv: str, **options: Any) -> CommandFailed:
    """Run a command that fails, and return how."""
    with pytest.raises(CommandFailed) as failed:
        await run(*argv, **options)
    assert "\n" not in str(failed.value)
    return failed.value


def open_files() -> list[str]:
    """Return this process's file descriptors; the listing's own has the same number each time."""
    return sorted(os.listdir("/dev/fd"))


def is_gone(pid: int) -> bool:
    """Whether there is no such process any more, nor its zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def children() -> set[int]:
    """Return the processes that this one has started, running or to be reaped: also those of other tests' fixtures."""
    if not os.path.isdir("/proc/self"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [line.split() for line in listed.splitlines()]
        return {int(pid) for pid, parent in pairs if int(parent) == os.getpid()}
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            # Whoever has ended meanwhile is not there any more.
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.add(int(entry))
    return found


def wait_for(pid: int) -> None:
    """Reap a process that is ending, if it is ours to reap."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def wait_without_reaping(pid: int) -> None:
    """Wait until a process has exited, and leave its exit code to somebody else."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class Fifo:
    """A named pipe, over which a command says something; opened to be written as well, so that it never ends."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def line(self) -> str:
        """Wait for a line."""
        heard = b""
        while not heard.endswith(b"\n"):
            await anyio.wait_readable(self.descriptor)
            heard += os.read(self.descriptor, 1)
        return heard.decode().strip()


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "fifo")
    yield fifo
    os.close(fifo.descriptor)


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


@pytest.fixture(params=["pidfd", "thread", "thread that reaps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way in which the end of a process is noticed: what a platform does not have is missing in os."""
    if request.param != "pidfd":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("only Linux has pidfd_open")
    if request.param == "thread that reaps":
        monkeypatch.delattr(os, "waitid", raising=False)


class TestWhatACommandGets:
    async def test_its_arguments_as_they_are_for_there_is_no_shell(self) -> None:
        arguments = ("$HOME", "; echo x", "*", "", "a b", "'", "ü")
        result = await run(*python("import sys; print(sys.argv[1:])", *arguments))
        assert result.stdout == f"{list(arguments)}\n"

    async def test_its_directory(self, tmp_path: Path) -> None:
        code = "import os, sys; print(os.path.samefile('.', sys.argv[1]))"
        assert (await run(*python(code, str(tmp_path)), cwd=str(tmp_path))).stdout == "True\n"

    async def test_its_environment_beside_that_of_the_runner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("INHERITED", "here")
        monkeypatch.setenv("REPLACED", "old")
        code = "import os; print([os.environ[n] for n in ('INHERITED', 'REPLACED', 'ADDED')])"
        result = await run(*python(code), env={"REPLACED": "new", "ADDED": "ü"})
        assert result.stdout == "['here', 'new', 'ü']\n"

    async def test_its_standard_input_whatever_its_size(self) -> None:
        text = "ünlimited\0" * 50_000
        result = await run(*python("import sys; print(sys.stdin.read() == 'ünlimited\\0' * 50_000)"), stdin=text)
        assert result.stdout == "True\n"

    @pytest.mark.parametrize("stdin", [None, ""])
    async def test_an_input_that_ends_at_once_when_there_is_none(self, stdin: str | None) -> None:
        assert (await run(*python("import sys; print(repr(sys.stdin.read()))"), stdin=stdin)).stdout == "''\n"

    async def test_a_session_of_its_own_without_a_terminal(self) -> None:
        code = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"
        assert (await run(*python(code))).stdout == "True\n"

    async def test_none_of_the_runners_open_files(self) -> None:
        result = await run(*python("import os; print(len(os.listdir('/dev/fd')))"))
        assert result.stdout == "4\n", "its three and the one that lists"


class TestWhatIsKept:
    async def test_both_outputs_and_the_exit_code(self, way: None) -> None:
        result = await run(*python("import sys; print('out'); print('err', file=sys.stderr)"))
        assert result.seconds > 0
        expected = CommandResult(0, None, "out\n", "err\n", cut=False, seconds=result.seconds)
        assert result == expected
        assert json_data.decode(json_data.encode(result.to_data())) == {
            "exit_code": 0,
            "signal": None,
            "stdout": "out\n",
            "stderr": "err\n",
            "cut": False,
            "seconds": result.seconds,
        }

    async def test_of_a_failed_one_the_exit_code_and_the_last_line_of_its_errors(self, way: None) -> None:
        code = "import sys; print('half'); sys.exit('first\\n\\x1b[31mdisk full')"
        failed = await failure(*python(code))
        assert failed.result is not None
        assert (failed.result.exit_code, failed.result.signal, failed.result.stdout) == (1, None, "half\n")
        assert str(failed).endswith(r"ended with exit code 1: \x1b[31mdisk full")

    @pytest.mark.parametrize(
        ("number", "name"),
        [(signal.SIGKILL, "SIGKILL"), (signal.SIGUSR1, "SIGUSR1")]
        + ([(signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}")] if sys.platform == "linux" else []),
    )
    async def test_the_name_of_the_signal_that_ended_it(self, number: int, name: str) -> None:
        failed = await failure(*python(f"import os; os.kill(os.getpid(), {int(number)})"))
        assert failed.result is not None
        assert (failed.result.exit_code, failed.result.signal) == (None, name)
        assert str(failed).endswith(f"was ended by {name}")

    @pytest.mark.parametrize(
        ("capture", "kept", "cut"), [(0, "", True), (1, "j", True), (9, "bcdefghij", True), (10, "abcdefghij", False)]
    )
    async def test_the_last_bytes_of_an_output_and_whether_there_were_more(
        self, capture: int, kept: str, cut: bool
    ) -> None:
        result = await run(*python("print('abcdefghij', end='')"), capture=capture)
        assert (result.stdout, result.stderr, result.cut) == (kept, "", cut)

    async def test_no_part_of_a_character_that_was_cut_in_two(self) -> None:
        result = await run(*python("import os; os.write(1, '😀😀ü'.encode())"), capture=9)
        assert result.stdout == "😀ü"[-2:]
        assert (await run(*python("import os; os.write(1, '😀😀ü'.encode())"), capture=5)).stdout == "ü"

    async def test_signs_in_place_of_what_is_not_utf_8(self) -> None:
        result = await run(*python(r"import os; os.write(1, b'\xff\x00\xe4z')"))
        assert result.stdout == "\ufffd\0\ufffdz"
        assert (await run(*python(r"import os; os.write(1, b'\x80' * 9)"), capture=6)).stdout == "\ufffd" * 6

    async def test_little_of_an_output_without_end_in_little_memory(self) -> None:
        code = (
            "import os\nfor n in range(256): os.write(1, b'x' * 2**20)\nos.write(2, b'y' * 2**20); os.write(1, b'end')"
        )
        tracemalloc.start()
        try:
            result = await run(*python(code), capture=1000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert result.cut
        assert result.stdout == "x" * 997 + "end"
        assert result.stderr == "y" * 1000
        assert peak < 2**20

    async def test_no_exit_code_where_somebody_else_took_it(self) -> None:
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            failed = await failure(*python("pass"))
        finally:
            signal.signal(signal.SIGCHLD, before)
        assert failed.result is not None
        assert (failed.result.exit_code, failed.result.signal) == (None, None)
        assert "SIGCHLD" in str(failed)

    async def test_each_its_own_of_many_at_once(self) -> None:
        numbers = range(10)
        results = await asyncio.gather(
            *(
                run_command(Command(python("import sys; print(sys.stdin.read() * 9)"), stdin=f"{n}"), grace=HANG)
                for n in numbers
            )
        )
        assert [result.stdout for result in results] == [f"{n}" * 9 + "\n" for n in numbers]


class TestInput:
    @pytest.mark.parametrize("code", ["import os; os.close(0); print('done')", "print('done')"])
    async def test_that_nobody_reads_is_dropped(self, code: str) -> None:
        assert (await run(*python(code), stdin="x" * 1_000_000)).stdout == "done\n"

    async def test_that_is_read_late_does_not_hold_up_the_output(self) -> None:
        code = "import os, sys; os.write(1, b'x' * 500_000); print(len(sys.stdin.read()))"
        assert (await run(*python(code), stdin="y" * 500_000, capture=7)).stdout == "500000\n"


class TestStarting:
    async def test_a_program_that_is_not_there_fails_with_one_line(self, tmp_path: Path) -> None:
        failed = await failure("no-such-program", "secret")
        assert str(failed) == "command 'no-such-program' cannot be started: No such file or directory"
        assert failed.result is None

    async def test_a_program_that_is_not_executable_fails_with_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "text"
        path.write_text("x")
        assert str(await failure(str(path))).endswith("cannot be started: Permission denied")
        path.chmod(0o755)
        assert str(await failure(str(path))).endswith("cannot be started: Exec format error")

    async def test_a_directory_that_is_none_fails_with_one_line_that_names_it(self, tmp_path: Path) -> None:
        missing, file = str(tmp_path / "missing"), tmp_path / "file"
        file.write_text("")
        failed = str(await failure("true", cwd=missing))
        assert failed == f"command 'true' cannot be started: cwd={shown(missing)}: No such file or directory"
        failed = str(await failure("true", cwd=str(file)))
        assert failed == f"command 'true' cannot be started: cwd={shown(str(file))}: Not a directory"

    async def test_an_argument_that_is_too_long_fails_with_one_line(self) -> None:
        assert str(await failure("true", "x" * 3_000_000)) == "command 'true' cannot be started: Argument list too long"

    async def test_a_process_that_cannot_be_watched_is_ended_at_once(
        self, fifo: Fifo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        before = children()
        with pytest.raises(RuntimeError, match="new thread"):
            await run(*python(PAUSE), stdin="x")
        assert children() <= before


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

    async def test_a_canceled_command_ends_as_it_likes_within_the_grace(self, fifo: Fifo, tmp_path: Path) -> None:
        async with stopping(fifo, tmp_path) as command:
            command.task.cancel()
            assert await fifo.line() == "stopping"
            command.release()
            with pytest.raises(asyncio.CancelledError):
                await command.task
        assert command.checkpoint.read_text() == "checkpoint"

    async def test_cancelling_again_does_not_shorten_the_grace(self, fifo: Fifo, tmp_path: Path) -> None:
        async with stopping(fifo, tmp_path) as command:
            command.task.cancel()
            assert await fifo.line() == "stopping"
            for _ in range(3):
                command.task.cancel()
                await asyncio.sleep(0)
            command.release()
            with pytest.raises(asyncio.CancelledError):
                await command.task
        assert command.checkpoint.read_text() == "checkpoint"

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
        assert is_gone(pid)

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

    def test_a_loop_that_ends_waits_for_the_grace(self, tmp_path: Path) -> None:
        fifo = Fifo(tmp_path / "fifo")

        async def leave() -> Stopping:
            async with stopping(fifo, tmp_path, ends=False) as command:
                asyncio.get_running_loop().add_reader(fifo.descriptor, release_once, command)
                return command

        def release_once(command: Stopping) -> None:
            asyncio.get_running_loop().remove_reader(fifo.descriptor)
            command.release()

        command = asyncio.run(leave())
        os.close(fifo.descriptor)
        assert is_gone(command.pid)
        assert command.checkpoint.read_text() == "checkpoint"


class TestWhatACommandLeavesRunning:
    @pytest.fixture(autouse=True)
    def orphans(self) -> Iterator[None]:
        """Inherit them, as process 1 of a container does: how soon the machine's own process 1 reaps is its affair."""
        with subreaper() if sys.platform == "linux" else contextlib.nullcontext():
            yield

    async def test_may_finish_its_output_within_the_grace(self) -> None:
        result = await run(*python(FORK + "os.read(r, 1); print('late')"))
        assert result.stdout.split()[1:] == ["late"]
        assert is_gone(int(result.stdout.split()[0]))

    async def test_is_ended_when_it_holds_the_output_for_longer(self, way: None) -> None:
        result = await run(*python(FORK + PAUSE), grace=SHORT)
        assert is_gone(int(result.stdout))

    async def test_is_ended_at_once_when_it_holds_no_output(self) -> None:
        result = await run(*python(FORK + "os.closerange(0, 3); " + PAUSE))
        assert is_gone(int(result.stdout))

    async def test_is_killed_when_it_ignores_sigterm(self) -> None:
        ignoring = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FORK}{PAUSE}"
        result = await run(*python(ignoring), grace=SHORT)
        assert is_gone(int(result.stdout))

    async def test_is_ended_when_the_command_is_canceled(self, fifo: Fifo) -> None:
        code = f"import os, signal, sys\nif os.fork(): signal.pause()\n{SAY_PID}\nsignal.pause()"
        task = asyncio.create_task(run(*python(code, fifo.path)))
        child = int(await fifo.line())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_gone(child)

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
        assert is_gone(int(result.stdout))

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
        assert not is_gone(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(pid)

    async def test_is_reaped_by_a_runner_that_inherits_it(self) -> None:
        result = await run(*python(FORK + "os.closerange(0, 3); " + PAUSE))
        assert int(result.stdout) not in children()


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

    before = open_files()
    task = asyncio.create_task(main())
    command = Stopping(task, checkpoint, gate, int(await fifo.line()))
    yield command
    if ends:
        assert task.done()
        assert is_gone(command.pid)
        assert open_files() == before


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
