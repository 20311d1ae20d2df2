"""`backup`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Invoke


def test_the_copy_is_a_store(invoke: Invoke, email: str, tmp_path: Path) -> None:
    invoke("add", "email", "first", "--data", "[1]", "--store", email)
    copy = tmp_path / "copy" / "data.mdb"
    copy.parent.mkdir()
    done = invoke("backup", str(copy), "--store", email)
    assert (done.code, done.out) == (0, f"{copy}: {copy.stat().st_size} bytes\n")
    before = invoke("list", "-o", "json", "--store", email).json
    assert invoke("list", "-o", "json", "--store", f"lmdb:{copy.parent}").json == before


def test_json_tells_file_and_size(invoke: Invoke, email: str, tmp_path: Path) -> None:
    done = invoke("backup", "copy.mdb", "-o", "json", "--store", email)
    assert done.json == {"file": "copy.mdb", "bytes": (tmp_path / "copy.mdb").stat().st_size}


def test_an_existing_file_is_not_overwritten(invoke: Invoke, email: str, tmp_path: Path) -> None:
    (tmp_path / "copy.mdb").write_text("mine")
    refused = invoke("backup", "copy.mdb", "--store", email)
    assert (refused.code, "copy.mdb exists already; name a new file" in refused.error) == (2, True)
    assert (tmp_path / "copy.mdb").read_text() == "mine"


def test_a_store_without_a_file_cannot_be_copied(invoke: Invoke) -> None:
    refused = invoke("backup", "copy.mdb", "--store", "memory:")
    assert (refused.code, "cannot be backed up" in refused.error) == (3, True)
