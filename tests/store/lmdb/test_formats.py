"""A store that was written in an older format is refused at opening, in one line, and left as it is."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from jobs_service import JobsService, StoreError

FORMAT_KEY = b"\xff/jobs_service/format"


@pytest.mark.parametrize("older", [b"0", b"1"])
async def test_a_store_of_an_older_format_is_refused_in_one_line_and_left_as_it_is(
    tmp_path: Path, older: bytes
) -> None:
    path = tmp_path / "store"
    async with JobsService(f"lmdb:{path}", supervise=False) as jobs:
        await jobs.set_type_timeout("t", 60)
        await jobs.add("t", "a")
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        assert transaction.get(FORMAT_KEY) == b"3"
        transaction.put(FORMAT_KEY, older)
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(StoreError) as caught:
        async with JobsService(f"lmdb:{path}", supervise=False):
            pass
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert f"has format {older.decode()}, of a version of jobs_service that was never released" in message
    assert "reads formats 2 and 3: choose another directory" in message
    assert not caught.value.retryable
    assert (path / "data.mdb").read_bytes() == before
