"""`upgrade`: a store of an earlier format gets the present one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.cli.conftest import Invoke
from tests.service.test_conversion import make_old


def test_a_store_of_an_earlier_format_is_upgraded_once(invoke: Invoke, tmp_path: Path) -> None:
    jobs = asyncio.run(make_old(tmp_path / "old")).jobs
    store = f"lmdb:{tmp_path / 'old'}"
    done = invoke("upgrade", "--store", store)
    assert (done.code, done.out) == (0, f"upgraded; {jobs} jobs are counted\n")
    done = invoke("upgrade", "--store", store)
    assert (done.code, done.out) == (0, "the store has the format of this version already\n")


def test_json_tells_how_many_jobs_are_counted(invoke: Invoke, tmp_path: Path) -> None:
    jobs = asyncio.run(make_old(tmp_path / "old")).jobs
    store = f"lmdb:{tmp_path / 'old'}"
    assert invoke("upgrade", "--json", "--store", store).json == {"upgraded": True, "jobs": jobs}
    assert invoke("upgrade", "--json", "--store", store).json == {"upgraded": False, "jobs": 0}


def test_any_verb_upgrades_an_embedded_store(invoke: Invoke, tmp_path: Path) -> None:
    asyncio.run(make_old(tmp_path / "old"))
    store = f"lmdb:{tmp_path / 'old'}"
    assert invoke("stats", "--store", store).code == 0
    assert invoke("upgrade", "--json", "--store", store).json == {"upgraded": False, "jobs": 0}


def test_nothing_is_copied_into_a_store_of_an_earlier_format(invoke: Invoke, email: str, tmp_path: Path) -> None:
    asyncio.run(make_old(tmp_path / "old"))
    refused = invoke("copy", email, f"lmdb:{tmp_path / 'old'}")
    assert refused.code == 1
    assert "has the format of an earlier version: run jobs-service upgrade first" in refused.error
