"""The README's programs and commands do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jobs_service
from jobs_service.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _run(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _below(heading: str) -> str:
    """Return the first program below a heading."""
    found = re.search(r"```python\n(.*?)```", README[README.index(heading) :], re.DOTALL)
    assert found is not None
    return found[1]


def test_the_ten_lines_run_as_they_are(tmp_path: Path) -> None:
    assert _run(BLOCKS[0], tmp_path) == "sending to ada@example.org\nfinished\n"
    assert (tmp_path / "jobs-data" / "data.mdb").exists()


def test_the_ten_lines_run_again_on_the_store_they_left(tmp_path: Path) -> None:
    _run(BLOCKS[0], tmp_path)
    assert _run(BLOCKS[0], tmp_path).endswith("finished\n")


def test_the_transaction_and_the_subscription_run_as_they_are(tmp_path: Path) -> None:
    blocks = _below("### A job and your data in one transaction"), _below("### Waiting for a job")
    body = "\n".join(blocks).replace("\n", "\n        ")
    program = f"""
import asyncio
from jobs_service import JobsService

async def main():
    async with JobsService("lmdb:store") as jobs:
        await jobs.set_type_timeout("email", 30)
        async def work():
            job = await jobs.accept("email")
            await job.finish()
        worker = asyncio.create_task(work())
        {body}
        await worker
        async def paid(tx):
            return await tx.kv.get(b"orders/42")
        print(await jobs.transact(paid))

asyncio.run(main())
"""
    assert _run(program, tmp_path).splitlines()[-1] == "b'{\"total\": 99}'"


def test_every_setting_is_in_the_table() -> None:
    table = README[README.index("## Settings") : README.index("## Log events")]
    assert set(re.findall(r"`([a-z_]+)`", table)) == set(Settings.model_fields)


def test_every_log_event_is_in_the_table() -> None:
    table = README[README.index("## Log events") : README.index("## Errors")]
    documented = {
        name for row in re.findall(r"^\| (`[a-z_`, ]+) \|", table, re.MULTILINE) for name in row.split("`")[1::2]
    }
    used: set[str] = set()
    for source in Path(jobs_service.__file__).parent.rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        used |= set(re.findall(r"log\.(?:debug|info|warning|error|exception)\(\s*\"([a-z_]+)\"", text))
        used |= set(re.findall(r"\"(child_[a-z_]+)\"", text))
    assert used == documented


def test_every_public_error_is_named() -> None:
    errors = README[README.index("## Errors") : README.index("## Speed")]
    public = {name for name in jobs_service.__all__ if isinstance(getattr(jobs_service, name), type)}
    raised = {name for name in public if issubclass(getattr(jobs_service, name), jobs_service.JobsError)}
    assert raised <= set(re.findall(r"`([A-Za-z]+)`", errors))
