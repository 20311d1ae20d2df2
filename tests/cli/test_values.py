"""Durations, times and data as a person writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from jobs_service.cli import parsing
from tests.cli.support import HANG, environment

LIMITED = """
import resource, sys
from jobs_service.cli import main
resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, resource.getrlimit(resource.RLIMIT_DATA)[1]))
sys.exit(main())
"""
"""The program in 2 GiB of memory: far more than it needs, and endless input takes more. A limit for this process would
count what other tests have left in it."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("0.5", 0.5),
        ("30s", 30),
        ("1.5s", 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d2h3m4.5s", 93_784.5),
    ],
)
def test_a_duration_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parsing.duration(text, "--in") == seconds


@pytest.mark.parametrize("text", ["", "-1", "1.5h", "30m1h", "10x", "1 h", "h", "٣", "1e3", "nan", "10M"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration") as refused:
        parsing.duration(text, "--wait")
    assert refused.value.param_hint == "--wait"


@given(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_units_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parsing.duration(f"{days}d{hours}h{minutes}m{seconds}s", "--in") == total


@pytest.mark.parametrize("text", ["2030-01-31T09:00:00Z", "2030-01-31T10:00:00+01:00", "20300131T090000+0000"])
def test_a_time_with_an_offset_is_taken(text: str) -> None:
    assert parsing.moment(text) == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2030-01-31T09:00:00", "2030-01-31"])
def test_a_naive_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no offset from UTC"):
        parsing.run_at(None, text)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="no ISO 8601 time"):
        parsing.run_at(None, "tomorrow")


def test_in_and_at_exclude_each_other() -> None:
    with pytest.raises(typer.BadParameter, match="give one of them"):
        parsing.run_at("1s", "2030-01-31T09:00:00Z")


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "text", [1, {"a": None}], {"ä": "ö"}])
def test_data_is_json_or_a_files_json(value: Any, tmp_path: Path) -> None:
    text = json.dumps(value)
    file = tmp_path / "data.json"
    file.write_text(text)
    assert parsing.data(text) == value
    assert parsing.data(f"@{file}") == value


@pytest.mark.parametrize(
    "text", ["", "text", "{", '{"a":1}x', "NaN", "[-Infinity]", "9" * 5000, "[" * 100_000, "@", "@/nonexistent", "@."]
)
def test_what_is_not_json_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parsing.data(text)
    assert refused.value.param_hint == "--data"
    assert "\n" not in refused.value.message


def test_data_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes('"ä"'.encode("latin-1"))
    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        parsing.data(f"@{tmp_path / 'latin'}")


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "d"])
def test_an_endless_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration"):
        parsing.duration(text, "--in")


@pytest.mark.parametrize(
    "arguments", [["add", "email", "x", "--data", "@/dev/zero"], ["submit", "--stdin", "/dev/zero", "cat"]]
)
def test_input_without_end_is_bad_input_and_does_not_fill_the_memory(
    email: str, tmp_path: Path, arguments: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "--store", email, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"more than 10000000 bytes, which no job takes" in done.stderr
