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


@pytest.mark.parametrize("columns", ["", "40"])
def test_nothing_is_cut_where_nobody_sits(
    invoke: Invoke, full: str, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    listed = invoke("list", "email", "--store", full).out
    for job in invoke("list", "email", "-o", "json", "--store", full).json_lines:
        assert f"\n{names.shown(names.from_json(job['id']))} " in listed
        assert f"{compact(job['data'])}\n" in listed
    assert "…" not in listed


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminals_width_is_kept(full: str, tmp_path: Path, columns: int) -> None:
    commands = (["list", "email", "--prefix", "wide"], ["list", "email", "--prefix", "[", "-o", "wide"], ["failures"])
    for code, shown in several_on_terminal(commands, store=full, cwd=tmp_path, columns=columns):
        assert code == 0
        assert max(map(cell_len, without_escapes(shown).splitlines())) <= columns


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_types_and_ids_are_whole_however_narrow_a_terminal_is(full: str, tmp_path: Path, columns: int) -> None:
    ids = [names.shown(id) for id in (NASTY, "a-long-but-ordinary-name", "wide", "[bold]markup[/bold] :smile:")]
    commands = (["list"], ["list", "email"], ["list", "email", "-o", "wide"], ["types"])
    ended = several_on_terminal(commands, store=full, cwd=tmp_path, columns=columns)
    everything, jobs, wide, types = (without_escapes(shown).splitlines() for _, shown in ended)
    for id in ids:
        assert any(line.startswith(f"email{' ' * (len(names.shown(NASTY)) - 5)}  {id} ") for line in everything), id
        assert all(any(line.startswith(f"{id} ") for line in lines) for lines in (jobs, wide)), id
    assert any(line.startswith(f"{names.shown(NASTY)} ") for line in types)


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


def test_json_is_ascii_whatever_the_data(invoke: Invoke, full: str) -> None:
    listed = invoke("list", "-o", "json", "--store", full)
    assert listed.out.isascii()
    assert [job["data"] for job in listed.json_lines if job["id"] == "wide"] == ["日本語" * 40]
