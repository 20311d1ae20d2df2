"""The size of a store, and by how much it has grown."""

from pathlib import Path

from tests.dashboard.support import text
from tests.http.support import served


async def test_the_page_of_health_tells_it(tmp_path: Path) -> None:
    async with served(f"lmdb:{tmp_path}/jobs") as (_, client):
        said = text((await client.get("/system")).text)
        assert "Disk" in said
