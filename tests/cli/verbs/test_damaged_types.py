"""A damaged page with jobs of one type: verbs about all types show those of others, and say what is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.cli.conftest import Invoke
from tests.service.damaged_types import BEFORE, DAMAGED, SOUND, with_damaged
from tests.service.test_damaged_indexes import MANY


def test_failures_of_other_types_are_shown(invoke: Invoke, tmp_path: Path) -> None:
    said = invoke("failures", "--json", "--store", asyncio.run(with_damaged(tmp_path, "failed")))
    assert [row["message"] for row in said.json_lines] == [f"of {SOUND}"]
    assert said.err.startswith(f"jobs-service: failed or retrying jobs of type {DAMAGED} cannot be read: store lmdb:")
    assert said.code == 3


def test_workers_of_other_types_are_shown_and_all_types_are_counted(invoke: Invoke, tmp_path: Path) -> None:
    store = asyncio.run(with_damaged(tmp_path, "activity"))
    said = invoke("workers", "--json", "--store", store)
    assert [row["id"] for row in said.json_lines if row["type"] == SOUND] == ["running-0000"]
    assert DAMAGED not in {row["type"] for row in said.json_lines}
    assert said.err.startswith("jobs-service: running jobs of type ")
    assert said.code == 3
    rows = {row["type"]: row["running"] for row in invoke("stats", "--json", "--store", store).json_lines}
    assert rows == {BEFORE: MANY, DAMAGED: MANY, SOUND: 1}
