"""Commands, as real processes: what they get, what is kept of them, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from jobs_service import json_data
from jobs_service.errors import shown
from jobs_service.runner.commands import CommandResult
from tests.runner.commands.programs import PAUSE, Fifo, children, failure, python, run


class TestWhatACommandGets:
    async def test_its_arguments_as_they_are_for_there_is_no_shell(self) -> None:
        arguments = ("$HOME", "; echo x", "*", "", "a b", "'", "ü")
        result = await run(*python("import sys; print(sys.argv[1:])", *arguments))
        assert result.stdout == f"{list(arguments)}\n"

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

    async def test_of_a_failed_one_the_exit_code_and_the_last_line_of_its_errors(self, way: None) -> None:
        code = "import sys; print('half'); sys.exit('first\\n\\x1b[31mdisk full')"
        failed = await failure(*python(code))
        assert failed.result is not None
        assert (failed.result.exit_code, failed.result.signal, failed.result.stdout) == (1, None, "half\n")
        assert str(failed).endswith(r"ended with exit code 1: \x1b[31mdisk full")


class TestInput:
    @pytest.mark.parametrize("code", ["import os; os.close(0); print('done')", "print('done')"])
    async def test_that_nobody_reads_is_dropped(self, code: str) -> None:
        assert (await run(*python(code), stdin="x" * 1_000_000)).stdout == "done\n"


class TestStarting:
    async def test_a_program_that_is_not_there_fails_with_one_line(self, tmp_path: Path) -> None:
        failed = await failure("no-such-program", "secret")
        assert str(failed) == "command 'no-such-program' cannot be started: No such file or directory"
        assert failed.result is None

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
