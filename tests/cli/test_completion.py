"""Shell completion, as bash asks for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.support import HANG, Ended, environment, process

PROGRAM = Path(sys.executable).with_name("jobs-service")


def completions(line: str, store: str, cwd: Path) -> list[str]:
    """Return how the last word of a line may go on."""
    words = line.split(" ")
    env = {
        "_JOBS_SERVICE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": f"{len(words) - 1}",
        "JOBS_SERVICE_STORE": store,
    }
    ended: Ended = process(cwd=cwd, env=env)
    assert (ended.code, ended.err) == (0, "")
    return ended.out.split()


def test_verbs_options_values_and_types_are_completed(invoke: Invoke, email: str, tmp_path: Path) -> None:
    invoke("types", "set", "two words", "60", "--store", email)
    for line, expected in (
        ("jobs-service sta", ["stats"]),
        ("jobs-service types c", ["clear"]),
        ("jobs-service add --pri", ["--priority"]),
        ("jobs-service list --state ca", ["canceled"]),
        ("jobs-service watch em", ["email"]),
        ("jobs-service stats ", ["email"]),
        ("jobs-service watch typo", []),
    ):
        assert completions(line, email, tmp_path) == expected
    assert completions(f"jobs-service --store {email} pause e", "lmdb:elsewhere", tmp_path) == ["email"]
    assert completions("jobs-service pause e", "lmdb:elsewhere", tmp_path) == []
    assert completions("jobs-service pause e", "nonsense", tmp_path) == []
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_printed(invoke: Invoke, shell: str) -> None:
    printed = invoke("completion", shell)
    assert (printed.code, printed.err) == (0, "")
    assert "_JOBS_SERVICE_COMPLETE=complete_" in printed.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script(tmp_path: Path) -> None:
    program = (
        'eval "$(jobs-service completion bash)"\n'
        "COMP_WORDS=(jobs-service back) COMP_CWORD=1\n"
        "_jobs_service_completion jobs-service\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", program],
        cwd=tmp_path,
        env={**environment(), "PATH": f"{PROGRAM.parent}:/usr/bin:/bin"},
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert (done.stdout.decode(), done.stderr.decode()) == ("backup\n", "")
