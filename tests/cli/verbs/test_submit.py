"""`submit`: command jobs, which a daemon beside the test runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.support import HANG, PROGRAM, serving


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store whose commands a daemon runs."""
    directory = tmp_path_factory.mktemp("commanded")
    address = f"lmdb:{directory / 'store'}"
    with serving("--store", address, "--commands", cwd=directory) as daemon:
        yield address
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 0


def python(program: str) -> list[str]:
    """Return the command that runs a program."""
    return ["--", sys.executable, "-c", program]


def test_waiting_prints_what_the_command_prints_and_exits_as_it_exits(invoke: Invoke, commanded: str) -> None:
    program = "import sys; print('öut'); sys.stderr.write('err\\n\\n'); sys.exit(7)"
    ended = invoke("submit", "--store", commanded, "--wait", "--timeout", f"{HANG}", *python(program))
    assert (ended.code, ended.out, ended.err) == (7, "öut\n", "err\n\n")


def test_a_command_gets_its_arguments_directory_environment_and_input(
    invoke: Invoke, commanded: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    program = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['A'], os.environ['B'], sys.stdin.read())"
    options = ["--cwd", "here", "--env", "A=1", "--env", "B=x=y", "--stdin", "-", "--id", "mine", "--priority", "-3"]
    words = ["$HOME", "--wait", "a b", "*"]
    ended = invoke("submit", "--store", commanded, "--wait", *options, *python(program), *words, stdin="ü".encode())
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{words} {tmp_path / 'here'} 1 x=y ü\n"
    job = invoke("show", "command", "mine", "-o", "json", "--store", commanded).json
    assert (job["priority"], job["attempts"], job["result"]["exit_code"]) == (-3, 1, 0)


def test_a_signal_is_128_and_its_number_and_is_said(invoke: Invoke, commanded: str) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)"
    ended = invoke("submit", "--store", commanded, "--wait", "--id", "signaled", *python(program))
    assert ended.code == 128 + signal.SIGUSR1
    assert "job signaled of type command failed: command " in ended.error
    assert ended.error.endswith("was ended by SIGUSR1")


def test_a_command_that_cannot_be_started_is_an_answer_of_no(invoke: Invoke, commanded: str) -> None:
    ended = invoke("submit", "--store", commanded, "--wait", "--id", "nobody", "no-such-program", "--help")
    assert ended.code == 1
    assert ended.error.startswith("job nobody of type command failed: command 'no-such-program' cannot be started: ")


def test_json_is_one_object_that_holds_the_output(invoke: Invoke, commanded: str) -> None:
    ended = invoke("submit", "--store", commanded, "--wait", "-o", "json", *python("print(1); raise SystemExit(3)"))
    assert ended.code == 3
    assert (ended.json["state"], ended.json["outcome"], ended.json["result"]["stdout"]) == ("finished", "failed", "1\n")


def test_a_command_is_added_with_its_type_and_its_id_is_printed(invoke: Invoke, store: str) -> None:
    first = invoke("submit", "--store", store, "--in", "1h", "ls", "-l")
    assert first.code == 0
    job = invoke("show", "command", first.out.strip(), "-o", "json", "--store", store).json
    assert (job["data"], job["state"]) == ({"argv": ["ls", "-l"]}, "pending")
    assert job["run_at"] is not None
    second = invoke("submit", "--store", store, "-o", "json", "ls").json
    assert second["id"] != job["id"]
    assert invoke("types", "-o", "json", "--store", store).json["type"] == "command"


def test_waiting_ends_when_its_time_is_over(invoke: Invoke, store: str) -> None:
    late = invoke("submit", "--store", store, "--id", "x", "--wait", "--timeout", "0.1", "ls")
    assert (late.code, late.error) == (
        1,
        "job x of type command did not finish within 0.1 s; "
        "it is still ready; a daemon runs it that was started with `serve --commands`",
    )
    assert invoke("show", "command", "x", "-o", "json", "--store", store).json["state"] == "pending"


@pytest.mark.parametrize(
    ("force", "said"), [([], "canceled"), (["--force"], "was removed before it finished")], ids=["canceled", "removed"]
)
def test_waiting_ends_with_a_job_that_somebody_removes(
    invoke: Invoke, commanded: str, force: list[str], said: str
) -> None:
    id = f"removed {len(force)}"
    remove = [*PROGRAM, "remove", "command", id, "--store", commanded, *force]
    program = f"import subprocess, time; subprocess.run({remove}); time.sleep(1000)"
    ended = invoke("submit", "--store", commanded, "--id", id, "--wait", "--timeout", f"{HANG}", *python(program))
    assert (ended.code, ended.error) == (1, f"job {id} of type command {said}")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--timeout", "5", "ls"], "Invalid value for --timeout: it limits --wait; give both"),
        (["--env", "A", "ls"], "Invalid value for --env: 'A'; write NAME=VALUE"),
        (["--env", "=1", "ls"], "Invalid value for --env: '=1'; write NAME=VALUE"),
        (["--time-limit", "soon", "ls"], "Invalid value for --time-limit: 'soon' is no duration"),
        (["--time-limit", "0", "ls"], "a command's time_limit=0.0: allowed are durations > 0"),
        (["--stdin", "nowhere", "ls"], "Invalid value for --stdin: nowhere: No such file or directory"),
        (["--stdin", "-", "ls"], "Invalid value for --stdin: -: it is no text in UTF-8"),
        ([""], "a command's argv[0]='': allowed is a string that is not empty"),
    ],
)
def test_what_no_command_can_have_is_wrong_usage(
    invoke: Invoke, store: str, arguments: list[str], complaint: str
) -> None:
    refused = invoke("submit", "--store", store, *arguments, stdin=b"\xff")
    assert refused.code == 2
    assert refused.error.startswith(complaint)
