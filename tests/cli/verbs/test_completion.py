"""Shell completion, as bash asks for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

PROGRAM = Path(sys.executable).with_name("jobs-service")


def asked(line: str, store: str) -> dict[str, str]:
    """Return what the environment has when bash asks how the last word of a line may go on."""
    return {
        "_JOBS_SERVICE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": f"{len(line.split(' ')) - 1}",
        "JOBS_SERVICE_STORE": store,
    }


def test_verbs_options_values_and_types_are_completed(
    invoke: Invoke, email: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completions(line: str, store: str) -> list[str]:
        with monkeypatch.context() as environ:
            for name, value in asked(line, store).items():
                environ.setenv(name, value)
            ended = invoke()
        assert (ended.code, ended.err) == (0, "")
        return ended.out.split()

    invoke("types", "set", "two words", "60", "--store", email)
    for id in ("ada", "adam", "bob", "ada lovelace"):
        invoke("add", "email", id, "--store", email)
    for line, expected in (
        ("jobs-service sta", ["stats"]),
        ("jobs-service types c", ["clear"]),
        ("jobs-service add --pri", ["--priority"]),
        ("jobs-service list --state ca", ["canceled"]),
        ("jobs-service watch em", ["email"]),
        ("jobs-service stats ", ["email"]),
        ("jobs-service watch typo", []),
        ("jobs-service show email ad", ["ada", "adam"]),
        ("jobs-service retry email ", ["ada", "adam", "bob"]),
        ("jobs-service cancel email --state fa", ["failed"]),
        ("jobs-service show typo ", []),
        ("jobs-service list -o ", ["id", "wide", "json"]),
    ):
        assert completions(line, email) == expected
    assert completions(f"jobs-service --store {email} pause e", "lmdb:elsewhere") == ["email"]
    assert completions("jobs-service pause e", "lmdb:elsewhere") == []
    assert completions("jobs-service pause e", "nonsense") == []
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_is_printed(invoke: Invoke, shell: str) -> None:
    printed = invoke("completion", shell)
    assert (printed.code, printed.err) == (0, "")
    assert "_JOBS_SERVICE_COMPLETE=complete_" in printed.out
