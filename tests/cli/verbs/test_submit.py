"""`submit`: command jobs, which a daemon beside the test runs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobEvent, JobsService, JobState, Outcome, StoreUnavailable
from jobs_service.cli import program
from jobs_service.cli.verbs import submit
from tests.cli.conftest import Invoke
from tests.cli.simulated import command_line
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
    job = invoke("show", "command", "mine", "--json", "--store", commanded).json
    assert (job["priority"], job["attempts"], job["result"]["exit_code"]) == (-3, 1, 0)


def test_a_signal_is_128_and_its_number_and_is_said(invoke: Invoke, commanded: str) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)"
    ended = invoke("submit", "--store", commanded, "--wait", "--id", "signaled", *python(program))
    assert ended.code == 128 + signal.SIGUSR1
    assert "job signaled of type command failed: command " in ended.error
    assert ended.error.endswith("was ended by SIGUSR1")


def test_a_command_that_takes_too_long_is_ended(invoke: Invoke, commanded: str) -> None:
    program = "import time; time.sleep(1000)"
    ended = invoke("submit", "--store", commanded, "--wait", "--time-limit", "0.2s", *python(program))
    assert ended.code == 128 + signal.SIGTERM
    assert "ran longer than its time_limit of 0.2 s" in ended.error


def test_a_command_that_cannot_be_started_is_an_answer_of_no(invoke: Invoke, commanded: str) -> None:
    ended = invoke("submit", "--store", commanded, "--wait", "--id", "nobody", "no-such-program", "--help")
    assert ended.code == 1
    assert ended.error.startswith("job nobody of type command failed: command 'no-such-program' cannot be started: ")


def test_json_is_one_object_that_holds_the_output(invoke: Invoke, commanded: str) -> None:
    ended = invoke("submit", "--store", commanded, "--wait", "--json", *python("print(1); raise SystemExit(3)"))
    assert ended.code == 3
    assert (ended.json["state"], ended.json["outcome"], ended.json["result"]["stdout"]) == ("finished", "failed", "1\n")


def test_output_that_was_not_kept_is_said(invoke: Invoke, commanded: str) -> None:
    ended = invoke("submit", "--store", commanded, "--wait", *python("print('x' * 200_000 + 'end')"))
    assert ended.code == 0
    assert ended.out.endswith("xend\n")
    assert ended.err == "jobs-service: the beginning of what it printed was not kept\n"


def test_a_command_is_added_with_its_type_and_its_id_is_printed(invoke: Invoke, store: str) -> None:
    first = invoke("submit", "--store", store, "--in", "1h", "ls", "-l")
    assert first.code == 0
    job = invoke("show", "command", first.out.strip(), "--json", "--store", store).json
    assert (job["data"], job["state"]) == ({"argv": ["ls", "-l"]}, "pending")
    assert job["run_at"] is not None
    second = invoke("submit", "--store", store, "--json", "ls").json
    assert second["id"] != job["id"]
    assert invoke("types", "--json", "--store", store).json["type"] == "command"


def test_an_id_that_is_taken_is_an_answer_of_no(invoke: Invoke, store: str) -> None:
    invoke("submit", "--store", store, "--id", "x", "ls")
    taken = invoke("submit", "--store", store, "--id", "x", "ls")
    assert taken.code == 1
    assert taken.error == (
        "job x of type command exists already; give another --id, or have that one run again: "
        "jobs-service resubmit command x"
    )


def test_waiting_ends_when_its_time_is_over(invoke: Invoke, store: str) -> None:
    late = invoke("submit", "--store", store, "--id", "x", "--wait", "--timeout", "0.1", "ls")
    assert (late.code, late.error) == (
        1,
        "job x of type command did not finish within 0.1 s; "
        "it is still ready; a daemon runs it that was started with `serve --commands`",
    )
    assert invoke("show", "command", "x", "--json", "--store", store).json["state"] == "pending"


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
    ("result", "outcome", "code"),
    [
        (None, Outcome.SUCCEEDED, 0),
        ("no command's", Outcome.SUCCEEDED, 0),
        ({"exit_code": None, "signal": None}, Outcome.FAILED, 1),
        ({"signal": "signal 35"}, Outcome.FAILED, 163),
        ({"signal": "SIGNIFICANT"}, Outcome.FAILED, 1),
        ({"signal": 9}, Outcome.CANCELED, 1),
    ],
)
def test_a_result_that_no_command_has_left_is_the_outcome(result: Any, outcome: Outcome, code: int) -> None:
    assert submit._exit_code(JobEvent("command", "x", JobState.FINISHED, None, outcome, b"", result)) == code


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


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("later", [[], ["--in", "0.05"]])
async def test_who_waits_for_a_job_that_nobody_runs_is_told_why(
    later: list[str], is_paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, heard = list[str](), asyncio.Event()

    def say(message: str) -> None:
        said.append(message)
        heard.set()

    monkeypatch.setattr(submit, "PATIENCE", 0.01)
    monkeypatch.setattr(program, "say", say)
    async with JobsService("memory:") as jobs:
        if is_paused:
            await jobs.pause("command")
        verb = asyncio.create_task(command_line(jobs, ["submit", "--id", "x", "--wait", *later, "--", "true"]))
        await heard.wait()
        await jobs.resume("command")
        job = await jobs.accept("command", timeout=HANG)
        assert job is not None
        await job.finish(result={"exit_code": 3})
        assert (await verb).code == 3
    why = "a daemon runs it that was started with `serve --commands`"
    if is_paused:
        why = "type command is paused: `jobs-service resume command`"
    assert said == [f"job x of type command is ready; {why}"]


async def test_what_the_time_limit_says_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(submit, "PATIENCE", 0.05)
    monkeypatch.setattr(program, "say", said.append)
    async with JobsService("memory:") as jobs:
        verb = await command_line(jobs, ["submit", "--id", "x", "--wait", "--timeout", "0.05", "true"])
    assert verb.code == 1
    assert len([each for each in said if "did not finish" in each]) == 1
    assert len(said) <= 2


async def test_the_exit_code_is_the_programs_also_if_its_output_cannot_be_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(type: object) -> None:
        raise StoreUnavailable("the store could not be reached")

    async with JobsService("memory:") as jobs:
        verb = asyncio.create_task(command_line(jobs, ["submit", "--id", "x", "--wait", "true"]))
        job = None
        while job is None:
            job = await jobs.accept("command", timeout=0.01)
        monkeypatch.setattr(jobs, "get_redaction", fails)
        await job.finish(result={"exit_code": 7, "stdout": "secret"})
        ended = await verb
        assert (ended.code, ended.out) == (7, "")
