"""The steps of the demonstration, in order, with the sentences about them; it uses the public interface only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs_service
from jobs_service import Job, JobEvent, JobsService, JobState, NewJob, Settings
from jobs_service.cli import exits, output
from jobs_service.cli.tables import STYLES, Column, table
from jobs_service.cli.verbs.quickstart.narrator import Narrator
from jobs_service.cli.verbs.quickstart.next_steps import next_steps
from jobs_service.cli.verbs.quickstart.workers import Workers, worker_processes

TIMEOUT = 2.0
"""Seconds a job may be silent."""

LIMIT = 60.0
"""Seconds after which even a slow machine should have ended."""

HOLDOFF = 0.01
LARGEST = 5

WORKERS = (("A", "archive"), ("B", "compress"), ("C", "compress"))

COLUMNS = (
    Column("file"),
    Column("before", right=True),
    Column("after", right=True),
    Column("left", right=True),
    Column("worker"),
)


async def tell(directory: Path) -> None:
    """Run all steps on a store in this directory."""
    narrator = Narrator()
    store = f"lmdb:{directory / 'store'}"
    narrator.title("A demonstration of jobs_service, in about ten seconds.")
    narrator.plain(f"The store is {store}; it is removed at the end.")
    narrator.plain()
    async with (
        JobsService(store, settings=Settings(notify_holdoff=HOLDOFF)) as jobs,
        worker_processes(store, directory / "compressed") as workers,
    ):
        await _add_jobs(jobs, narrator)
        await _Watching(jobs, workers, narrator).to_the_end()
        narrator.plain()
        await _summarize(jobs)
    narrator.plain()
    narrator.title("Three commands to try next:")
    for command in next_steps():
        narrator.plain(f"  {command}")


async def _add_jobs(jobs: JobsService, narrator: Narrator) -> None:
    """Add the types and the jobs."""
    package = Path(jobs_service.__file__).parent
    files = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    for type in ("compress", "archive"):
        await jobs.set_type_timeout(type, TIMEOUT)
    narrator.tell(
        f"There are two types of job, compress and archive, both with an activity timeout of {TIMEOUT:g} s: "
        "a running job that is silent for longer is taken for lost."
    )
    await jobs.add_many("compress", [NewJob(file, {"file": file}) for file in files])
    await jobs.add("archive", "package", {"files": files})
    narrator.tell(
        f"{len(files)} compress jobs are added, one for each file of this package, and one job of type archive: all of "
        "them in the smallest .tar.xz that can be found."
    )


class _Watching:
    """Follows the archive job through its life, and takes the next step when its state changes."""

    def __init__(self, jobs: JobsService, workers: Workers, narrator: Narrator) -> None:
        self._jobs = jobs
        self._workers = workers
        self._narrator = narrator
        self._worker = ""
        self._state: JobState | None = None

    async def to_the_end(self) -> None:
        """Return when the job has finished."""
        self._narrator.tell("A subscription to the archive job tells every change of it from here on.")
        async with self._jobs.subscribe("archive", "package") as events:
            async for event in events:
                self._show(event)
                await self._react(event)
        if not self._workers.was_started("D"):
            raise exits.Refused("the archive was finished before its worker could be killed")
        await self._workers.ended("D")

    def _show(self, event: JobEvent) -> None:
        line = f"archive job: {output.status_text(event)}"
        if event.state is JobState.RUNNING and event.data.get("worker") == self._worker:
            line += f", settings tried: {event.data['tried']}, best: {event.data['after']} bytes"
        elif event.state is self._state:
            return
        self._state = event.state
        self._narrator.tell(line, STYLES[output.status_text(event)])

    async def _react(self, event: JobEvent) -> None:
        if event.state is JobState.PENDING and not self._worker:
            await self._start_three()
        elif event.state is JobState.PENDING:
            await self._start_another()
        elif event.state is JobState.RUNNING and self._worker == "A" and event.data.get("tried", 0) >= 2:
            await self._kill()

    async def _start_three(self) -> None:
        self._worker = "A"
        pids = [await self._workers.start(name, type) for name, type in WORKERS]
        self._narrator.tell(
            f"Three worker processes start: A (pid {pids[0]}) for the archive, B ({pids[1]}) and C ({pids[2]}) for the "
            "files."
        )

    async def _kill(self) -> None:
        pid = await self._workers.kill(self._worker)
        self._worker = "D"
        self._narrator.tell(
            f"Worker A is killed in the middle of the job: kill -9 {pid}. It could tell nobody.", "bold"
        )
        await self._workers.ended("B", "C")
        self._narrator.tell("Workers B and C have found no more files to compress, and left.")
        self._narrator.tell("Until that is noticed, the archive job still counts as running ...")

    async def _start_another(self) -> None:
        self._narrator.tell(
            "The process monitor has found worker A dead and put its job back, without waiting for the timeout: that "
            "is for workers on other machines, which a cluster has. Nothing had to be cleaned up."
        )
        pid = await self._workers.start(self._worker, "archive")
        self._narrator.tell(f"Another worker process starts: D (pid {pid}).")


async def _summarize(jobs: JobsService) -> None:
    """Print the results of the jobs."""
    done = [job async for job in jobs.list("compress", state=JobState.FINISHED)]
    done.sort(key=lambda job: -job.data["before"])
    rows = [_row(str(job.id), [job]) for job in done[:LARGEST]]
    rows.append(_row(f"{len(done) - LARGEST} smaller files", done[LARGEST:]))
    rows.append(_row("all, one by one", done))
    rows.append(_row("all, in one archive", [await jobs.get("archive", "package")]))
    table(COLUMNS, rows)


def _row(name: str, done: list[Job]) -> list[str]:
    results: list[dict[str, Any]] = [job.data for job in done]
    before = sum(result["before"] for result in results)
    after = sum(result["after"] for result in results)
    workers = sorted({result["worker"] for result in results})
    return [name, str(before), str(after), f"{after / before:.0%}" if before else "", " ".join(workers)]
