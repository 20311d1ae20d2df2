"""How a command line ends: one line per error, and the exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

import jobs_service
from jobs_service import JobsService, NewJob
from jobs_service.cli import program
from tests.cli.conftest import Invoke
from tests.cli.support import (
    HANG,
    IMPATIENT,
    PROGRAM,
    ROOT,
    arrange,
    environment,
    on_terminal,
    process,
    started,
    write_lock_held,
)

VERBS = [
    *("add", "add-many", "submit", "list", "show", "watch", "retry", "cancel", "remove", "run", "resubmit"),
    *("pause", "resume", "retention", "redact", "stats", "top", "workers", "failures", "periodic", "handlers"),
    *("health", "replicate", "replications", "serve", "backup", "copy", "verify", "completion", "types", "processes"),
    *("schedules", "outbox", "token"),
]
READING = [
    ["types"],
    ["types", "clear", "email"],
    ["list"],
    ["show", "email", "x"],
    ["watch", "email", "x"],
    *([verb, "email", "x"] for verb in ("retry", "cancel", "remove", "run", "resubmit")),
    ["retry", "email", "--all", "--yes"],
    ["backup", "copy"],
    ["verify"],
    *([verb, "email"] for verb in ("pause", "resume", "retention")),
    ["stats"],
    ["top"],
    ["workers"],
    ["failures"],
    ["processes"],
    ["processes", "stop", "0123456789ab"],
    ["periodic"],
    ["schedules"],
    ["schedules", "pause", "nightly"],
    ["health"],
    ["watch", "email"],
]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing command. (see jobs-service --help)"),
        (["ad"], "No such command 'ad'."),
        (["add"], "Missing argument 'TYPE'. (see jobs-service add --help)"),
        (["show", "email"], "Missing argument 'ID'. (see jobs-service show --help)"),
        (["list", "--state", "lost"], "Invalid value: state: lost is no state; allowed are ready, scheduled, "),
        (["watch", "email", "--exit-status"], "Invalid value for --exit-status: it is about one job; name its ID"),
        (["add", "email", "--resubmit"], "Invalid value for --resubmit: it is about a job that exists; name its ID"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["add", "email", "x", "y"], "Got unexpected extra argument"),
        (["list", "--limit"], "'--limit' requires an argument"),
        (["types", "drop"], "No such command 'drop'. (see jobs-service types --help)"),
        (["types", "set", "email"], "Missing argument 'SECONDS'."),
        (["--verbose"], "No such option"),
        (["serve", "--log-level", "loud"], "Invalid value for '--log-level'"),
        (["serve", "--max-jobs", "0"], "Invalid value for '--max-jobs'"),
        (["submit"], "Missing argument '-- CMD ARGS...'"),
        (["top", "--interval", "0"], "Invalid value for --interval: it must be more than 0"),
        (
            ["--store", "lmdb:x", "handlers", "a:b"],
            "Invalid value for --store: handlers are in a program, not in a store",
        ),
        (
            ["--store", "lmdb:x", "copy", "lmdb:y", "lmdb:z"],
            "Invalid value for --store: name both stores: copy FROM TO",
        ),
        (["ad\x1b[31m\nx"], "No such command"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(invoke: Invoke, arguments: list[str], complaint: str) -> None:
    refused = invoke(*arguments)
    assert refused.code == 2
    assert complaint in refused.error
    assert refused.error.isprintable()


@pytest.mark.parametrize("arguments", READING)
def test_looking_at_a_store_that_is_not_there_does_not_make_it(
    invoke: Invoke, arguments: list[str], tmp_path: Path
) -> None:
    missing = invoke(*arguments)
    assert missing.code == 3
    assert missing.error == (
        "there is no store at jobs-data; name another with --store or JOBS_SERVICE_STORE, or make this one: "
        "jobs-service types set TYPE SECONDS"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["standard-input"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["add", "email", "x"], 1),
        (["add", "email", "x" * 500, "--timeout", "60"], 2),
        (["add", "email", "x", "--timeout", "60", "--data", "@long"], 2),
        (["add", "email", "x", "--timeout", "60", "--at", "0001-01-01T00:00:00+01:00"], 2),
        (["add", "json:null", "x", "--timeout", "60"], 2),
        (["add-many", "email"], 1),
        (["add-many", "x" * 500, "--timeout", "60"], 2),
        (["submit", "--stdin", "long", "cat"], 2),
        (["submit", "--wait", "--id", "x" * 500, "true"], 2),
        (["types", "set", "x" * 500, "60"], 2),
    ],
)
def test_what_is_refused_leaves_no_empty_store(invoke: Invoke, tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "long").write_text(f'"{"x" * 100_000}"')
    refused = invoke(*arguments, stdin=b'{"id": "a"}')
    assert (refused.code, refused.error != "") == (code, True)
    assert {path.name for path in tmp_path.iterdir()} == {"long", "standard-input"}


def test_the_store_comes_from_option_variable_and_default_in_this_order(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", "lmdb:variable")
    invoke("types", "set", "v", "1")
    invoke("types", "set", "o", "1", "--store", "lmdb:option")
    monkeypatch.setenv("JOBS_SERVICE_STORE", "")
    invoke("types", "set", "d", "1")
    names = {"variable": "v", "option": "o", "jobs-data": "d"}
    for directory, type in names.items():
        assert invoke("types", "-o", "json", "--store", f"lmdb:{directory}").json["type"] == type
    assert {path.name for path in tmp_path.iterdir()} == {*names, "standard-input"}


def _make_file(path: Path) -> None:
    path.write_text("not a directory")


def _make_garbage(path: Path) -> None:
    path.mkdir()
    (path / "data.mdb").write_bytes(b"no LMDB file at all" * 1000)


def _make_foreign(path: Path) -> None:
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"somebody", b"else's")


@pytest.mark.parametrize("make", [_make_file, _make_garbage, _make_foreign])
@pytest.mark.parametrize("arguments", [["list"], ["add", "email", "x"], ["serve"]])
def test_what_is_no_store_is_one_line_and_code_3(
    invoke: Invoke, tmp_path: Path, make: object, arguments: list[str]
) -> None:
    assert callable(make)
    make(tmp_path / "data")
    refused = invoke(*arguments, "--store", "lmdb:data")
    assert refused.code == 3
    assert "data" in refused.error


@pytest.mark.parametrize("address", ["jobs-data", "redis://localhost", "lmdb:", "memory:x"])
def test_an_address_that_names_no_store_is_wrong_usage(invoke: Invoke, address: str) -> None:
    refused = invoke("list", "--store", address)
    assert refused.code == 2
    assert repr(address) in refused.error


def test_a_store_that_does_not_answer_in_time_is_code_3(email: str, tmp_path: Path) -> None:
    with write_lock_held(email):
        refused = process("add", "email", "x", "--store", email, cwd=tmp_path, env=IMPATIENT)
    assert refused.code == 3
    assert "did not answer within 0.3 s" in refused.error


def test_a_reader_who_goes_away_ends_it_quietly(store: str, tmp_path: Path) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.add_many("email", [NewJob(f"{number}", "x" * 500) for number in range(2000)])

    arrange(store, fill)
    with started("list", "-o", "json", "--store", store, cwd=tmp_path) as listing:
        assert listing.stdout is not None
        assert listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr is not None
        assert listing.stderr.read() == ""
    assert listing.returncode == 141


@pytest.mark.parametrize("verb", [["--help"], ["list", "-o", "json"]])
def test_an_output_that_cannot_be_written_is_no_fault_of_the_store(
    invoke: Invoke, email: str, tmp_path: Path, verb: list[str]
) -> None:
    invoke("add", "email", "a", "--store", email)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, *verb],
            cwd=tmp_path,
            env=environment({"JOBS_SERVICE_STORE": email}),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=HANG,
            check=False,
        )
    assert done.returncode == 74
    assert done.stderr == b"jobs-service: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyError("x"), 70, "internal error, please report it: KeyError: 'x' at "),
        (TimeoutError(), 1, "TimeoutError"),
        (ExceptionGroup("several", [ExceptionGroup("inner", [program.AnswerIsNo("no")])]), 1, "no"),
        (PermissionError(13, "Permission denied", "file"), 3, "[Errno 13] Permission denied: 'file'"),
        (program.Terminated(143), 143, ""),
        (KeyboardInterrupt(), 130, ""),
        (program.AnswerIsNo("two\n  lines\x1b[0m"), 1, "two lines\\u001b[0m"),
    ],
)
def test_whatever_is_raised_has_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    def invoke() -> None:
        raise error

    assert program.guard(invoke) == code
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if line else 0)
    assert said.removeprefix("jobs-service: ").startswith(line)


@pytest.mark.parametrize("module", ["jobs_service.errors", "app"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "app.py").touch()
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    ended = process("serve", "app:jobs", cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert (ended.code, ended.out, ended.err) == (130, "", "")


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS), ["types", "set"], ["types", "clear"]])
def test_help_is_plain_and_fits_80_columns(invoke: Invoke, verb: list[str]) -> None:
    help = invoke(*verb, "--help")
    assert (help.code, help.err) == (0, "")
    assert help.out.startswith("Usage: jobs-service")
    assert "\x1b" not in help.out
    assert max(map(len, help.out.splitlines())) <= 80
    usage, _ = help.out.split("\n\n", 1)
    assert not re.search(r"[{}]|\[\[", usage)
    if not verb:
        listed = help.out.partition("\nCommands:\n")[2].splitlines()
        assert [line.split()[0] for line in listed] == VERBS
        assert not [line for line in listed if line.endswith("...")]


def test_the_version_is_printed(invoke: Invoke) -> None:
    assert (invoke("--version").code, invoke("--version").out) == (0, f"jobs-service {jobs_service.__version__}\n")


def test_help_imports_nothing_that_only_the_verbs_need(tmp_path: Path) -> None:
    call = (
        "import sys, jobs_service\n"
        "before = set(sys.modules)\n"
        "from jobs_service.cli import main\n"
        "main(['--help'])\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=tmp_path, env=environment(), capture_output=True, timeout=HANG, check=True
    )
    loaded = set(done.stdout.decode().splitlines()[-1].split())
    assert "jobs_service.cli.app" in loaded
    assert not loaded & {
        "asyncio",
        "lmdb",
        "pydantic",
        "rich.console",
        "structlog",
        "tempfile",
        "jobs_service.service",
        "jobs_service.cli.daemon",
        "jobs_service.cli.logging",
    }


def test_sigterm_ends_a_short_verb_as_it_ends_any_program(invoke: Invoke, email: str, tmp_path: Path) -> None:
    invoke("add", "email", "x", "--store", email)
    with started("watch", "email", "x", "--store", email, cwd=tmp_path) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(HANG) == -signal.SIGTERM


@pytest.mark.parametrize("verb", [["top"], ["add-many", "email", "jobs"], ["copy", "lmdb:store", "lmdb:other"]])
def test_sigterm_gives_a_terminal_its_cursor_back(invoke: Invoke, email: str, tmp_path: Path, verb: list[str]) -> None:
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    jobs = "".join(f'{{"id": "{number}"}}\n' for number in range(20_000))
    (tmp_path / "jobs").write_text(jobs)
    if verb[0] == "copy":
        invoke("add-many", "email", "jobs", "--store", email)
    env = {} if verb[0] == "copy" else {"JOBS_SERVICE_STORE": email}
    code, said = on_terminal(*verb, cwd=tmp_path, env=env, ended_at=(hidden, signal.SIGTERM))
    assert code == -signal.SIGTERM
    assert said.rindex(shown) > said.rindex(hidden)
