"""The size of a store, and by how much it has grown."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs_service.dashboard import figures, rendering
from jobs_service.dashboard.figures import SizeWatch
from tests.dashboard.support import text
from tests.http.support import served


def test_it_grows_by_what_is_written_since_it_was_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(figures, "time", SimpleNamespace(time=lambda: now))
    sizes = SizeWatch()
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    first = sizes.look(f"lmdb:{tmp_path}")
    assert first is not None
    assert (first.bytes >= 8192, first.grown, first.since) == (True, 0, None)
    assert first.free > 0
    (tmp_path / "data.mdb").write_bytes(b"x" * 65_536)
    now = 1600.0
    second = sizes.look(f"lmdb:{tmp_path}")
    assert second is not None
    assert (second.grown, second.since) == (second.bytes - first.bytes, 1000.0)
    assert second.grown > 0


def test_other_stores_have_no_size() -> None:
    sizes = SizeWatch()
    assert [sizes.look(where) for where in ("memory:", "fdb:/etc/cluster", "lmdb:/nowhere/at/all")] == [None] * 3


async def test_the_page_of_health_tells_it(tmp_path: Path) -> None:
    async with served(f"lmdb:{tmp_path}/jobs") as (_, client):
        said = text((await client.get("/health")).text)
        assert "Room left" in said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (20_480, "20 kB"),
        (1_234_567, "1.2 MB"),
        (999_600, "1.0 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_are_told_in_the_largest_unit(number: int, said: str) -> None:
    assert rendering.size(number) == said
