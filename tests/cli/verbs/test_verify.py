"""`verify`: rows that were changed by hand, in the file of a store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

QUEUE = "key between x'026a6f62735f73657276696365001502' and x'026a6f62735f73657276696365001503'"
"""The rows of READY."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The address of a SQLite file."""
    return f"sqlite:{tmp_path / 'app.db'}"


def test_a_sound_store_is_told_so_with_what_was_looked_at(invoke: Invoke, full: str) -> None:
    sound = invoke("verify", "--store", full)
    assert (sound.code, sound.out) == (0, f"sound: {full}: 6 jobs of 2 types\n")
    assert invoke("verify", "-o", "json", "--store", full).json == {
        "sound": True, "faults": 0, "jobs": 6, "types": 2, "types_not_compared": 0
    }  # fmt: skip


def test_rows_that_somebody_has_deleted_in_the_file_are_noticed(invoke: Invoke, full: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as db, db:
        assert db.execute(f"delete from jobs_service_keys where {QUEUE}").rowcount == 1
    faulty = invoke("verify", "--store", full)
    assert (faulty.code, faulty.out) == (1, "job e of type email: its row in READY is missing\n")
    assert f"{full}: 1 fault, 6 jobs of 2 types: end the programs that use it" in faulty.err
    line, summary = invoke("verify", "-o", "json", "--store", full).json_lines
    assert line == {"fault": "job e of type email: its row in READY is missing"}
    assert (summary["sound"], summary["faults"]) == (False, 1)
