"""What people see: 80 columns, colours on a terminal only, nothing that a terminal would act on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.cells import cell_len

from jobs_service import JobsService, NewJob, Outcome, names
from jobs_service.cli import output
from jobs_service.names import compact
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, on_terminal, process, without_escapes

NASTY = "\x1b]0;title\x07\x9b31m\r\b\u202e"

SEVERAL = """
import json, sys
from jobs_service.cli import main
for arguments in json.loads(sys.argv[1]):
    print("exit code", main(arguments), flush=True)
"""


def several_on_terminal(
    commands: Sequence[Sequence[str]], *, store: str, cwd: Path, columns: int = 80
) -> list[tuple[int, str]]:
    """Run command lines on a terminal, one after the other in one process; return what each left there and its code."""
    given = [list(command if "--store" in command else ["--store", store, *command]) for command in commands]
    code, shown = on_terminal(json.dumps(given), cwd=cwd, columns=columns, program=[sys.executable, "-c", SEVERAL])
    assert code == 0, shown
    parts = re.split(r"exit code (\d+)\n", shown)
    ended = [(int(code), shown) for shown, code in zip(parts[::2], parts[1::2], strict=False)]
    assert len(ended) == len(commands), shown
    return ended


@pytest.fixture
def full(store: str) -> str:
    """A store whose jobs have long and nasty data."""

    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.set_type_timeout(NASTY, 0.125)
        await jobs.add_many(
            "email",
            [
                NewJob("a-long-but-ordinary-name", {"text": "x" * 300}),
                NewJob(NASTY, [NASTY, {NASTY: NASTY}], run_at=4e9),
                NewJob("wide", "日本語" * 40),
                NewJob("[bold]markup[/bold] :smile:", "[red]x[/red]"),
            ],
        )
        await jobs.add(NASTY, "x")
        for outcome in Outcome:
            job = await jobs.accept("email", timeout=0)
            assert job is not None
            await job.finish(outcome=outcome)

    arrange(store, fill)
    return store


def test_tables_of_ordinary_names_fit_80_columns_of_a_terminal(invoke: Invoke, email: str, tmp_path: Path) -> None:
    for data in ("1", f'"{"x" * 300}"', f'"{"日本語" * 40}"'):
        invoke("add", "email", f"ordinary-{len(data)}", "--data", data, "--in", "1d", "--store", email)
    for _, shown in several_on_terminal((["list", "email"], ["list"], ["types"], ["stats"]), store=email, cwd=tmp_path):
        lines = without_escapes(shown).splitlines()
        assert max(map(cell_len, lines)) <= 80
        assert len(lines) in (2, 4)  # nothing was folded


@pytest.mark.parametrize("columns", ["", "40"])
def test_nothing_is_cut_where_nobody_sits(
    invoke: Invoke, full: str, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    listed = invoke("list", "email", "--store", full).out
    for job in invoke("list", "email", "--json", "--store", full).json_lines:
        assert f"\n{names.shown(names.from_json(job['id']))} " in listed
        assert f"{compact(job['data'])}\n" in listed
    assert "…" not in listed


def test_only_data_is_cut_on_a_terminal(full: str, tmp_path: Path) -> None:
    _, shown = on_terminal("list", "email", "--state", "succeeded", "--store", full, cwd=tmp_path)
    heading, line = without_escapes(shown).splitlines()
    assert heading.split() == ["ID", "STATE", "NOTE,", "DATA"]
    assert line.startswith('a-long-but-ordinary-name  succeeded  {"text":"xxx')
    assert line.endswith("x…")
    assert len(line) == 80


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminals_width_is_kept(full: str, tmp_path: Path, columns: int) -> None:
    commands = (["list"], ["types"], ["list", "--state", "pending"])
    for code, shown in several_on_terminal(commands, store=full, cwd=tmp_path, columns=columns):
        assert code == 0
        assert shown
        for line in without_escapes(shown).splitlines():
            assert cell_len(line) <= columns, line


def test_columns_in_the_environment_override_a_terminals_own(full: str, tmp_path: Path) -> None:
    _, shown = on_terminal("list", "email", "--store", full, cwd=tmp_path, env={"COLUMNS": "200"})
    assert max(map(cell_len, without_escapes(shown).splitlines())) == 200


def test_states_are_coloured_on_a_terminal_and_nowhere_else(full: str, tmp_path: Path) -> None:
    _, shown = on_terminal("list", "email", "--store", full, cwd=tmp_path)
    assert re.search(r"\x1b\[32msucceeded", shown)
    assert re.search(r"\x1b\[31mfailed", shown)
    assert "\x1b" not in process("list", "email", "--store", full, cwd=tmp_path).out
    _, plain = on_terminal("list", "email", "--store", full, cwd=tmp_path, env={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[3\d", plain)


def test_nothing_from_a_job_reaches_the_terminal_unescaped(full: str, tmp_path: Path) -> None:
    commands = (
        ["list"],
        ["types"],
        ["show", "email", 'json:"\\u001b]0;title\\u0007\\u009b31m\\r\\b\\u202e"'],
        ["show", "email", NASTY],
        ["show", NASTY, NASTY],
        ["watch", "email", NASTY, "--timeout", "0.2"],
        ["remove", "email", f"{NASTY}x"],
        ["list", "--store", f"lmdb:{NASTY}"],
        [NASTY],
    )
    for arguments, (code, shown) in zip(commands, several_on_terminal(commands, store=full, cwd=tmp_path), strict=True):
        assert code in (0, 1, 2, 3)
        assert shown
        for char in "\x07\x08\x9b\u202e":
            assert char not in shown, arguments
        assert "\x1b]" not in shown
        assert "\r" not in shown


def test_markup_in_a_job_is_text(full: str, tmp_path: Path) -> None:
    _, shown = on_terminal("list", "email", "--store", full, cwd=tmp_path, columns=120)
    assert "[bold]markup[/bold] :smile:" in without_escapes(shown)
    assert '"[red]x[/red]"' in without_escapes(shown)


def test_json_is_ascii_whatever_the_data(invoke: Invoke, full: str) -> None:
    listed = invoke("list", "--json", "--store", full)
    assert listed.out.isascii()
    assert [job["data"] for job in listed.json_lines if job["id"] == "wide"] == ["日本語" * 40]


def test_an_old_locale_is_no_failure(full: str, tmp_path: Path) -> None:
    listed = process("list", "email", "--store", full, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (listed.code, listed.err) == (0, "")
    assert "\\u65e5" in listed.out


@pytest.mark.parametrize(
    ("text", "columns", "result"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 5, "日本…"), ("日本", 4, "日本")]
)
def test_cut_counts_columns_not_characters(text: str, columns: int, result: str) -> None:
    assert output.cut(text, columns) == result
    assert cell_len(result) <= columns


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (3.21, "3.2s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (725, "12m05s"),
        (3600, "1h00m"),
        (97_200, "1d03h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert output.duration_text(seconds) == text
