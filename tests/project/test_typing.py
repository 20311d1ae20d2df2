"""What a type checker says of programs: mistakes that it must find, and good programs of which it must find none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

PROGRAM = """
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from jobs_service import BlockingJob, Job, JobsService, JobTransaction, RunningJob
from jobs_service.within import WithinTransaction

jobs = JobsService("memory:")


@dataclass
class Thumbnail:
    image: str


@dataclass
class Mail:
    to: str


class Movie(TypedDict):
    title: str


@jobs.handler("thumbnail")
async def thumbnail(job: RunningJob, args: Thumbnail) -> dict[str, str]:
    await job.progress(1, 2)
    return {}


@jobs.handler("plain")
def plain(job: BlockingJob, args: Thumbnail) -> int:
    job.progress(1, 2)
    return 1


@jobs.handler("only args")
async def only_args(args: Thumbnail) -> list[int]:
    return []


@jobs.handler("only job")
async def only_job(job: RunningJob) -> str:
    return ""


@jobs.handler("movie")
async def movie(args: Movie) -> None: ...


@jobs.handler("mail")
async def mail(to: str, subject: str = "hi") -> int:
    return 1


@jobs.handler("mail of job")
def mail_of_job(job: BlockingJob, to: str, subject: str) -> str:
    return ""


@jobs.handler("by keyword")
async def by_keyword(*, to: str, subject: str) -> str:
    return ""


@jobs.every("5m")
async def tick() -> None: ...


async def main() -> None:
    job = await jobs.enqueue(thumbnail, Thumbnail("a"), unique=True, delay=timedelta(1), max_attempts=1, time_limit=3)
    assert_type(job, Job)
    assert_type(await jobs.result(thumbnail, job.id), dict[str, str])
    assert_type(await jobs.result(plain, job.id, timeout=3), int)
    assert_type(await jobs.result(only_args, job.id), list[int])
    assert_type(await jobs.result(only_job, job.id), str)
    assert_type(await jobs.result(mail, job.id), int)
    assert_type(await jobs.result(mail_of_job, job.id), str)
    assert_type(await jobs.result(by_keyword, job.id), str)
    assert_type(await jobs.result("thumbnail", job.id), Any)
    print(await jobs.result(thumbnail, job.id), str(await jobs.result(plain, job.id)))
    wider: dict[str, str] | None = await jobs.result(thumbnail, job.id)
    print(wider)
    await jobs.enqueue(plain, Thumbnail("a"), run_at=timedelta(seconds=3))
    await jobs.enqueue(only_job)
    await jobs.enqueue(only_job, {"whatever": 1})
    await jobs.enqueue(movie, {"title": "M"})
    await jobs.enqueue(mail, to="ada")
    await jobs.enqueue(mail_of_job, {"to": "ada", "subject": "hi"})
    await jobs.enqueue(by_keyword, to="ada", subject="hi", id="a")
    await jobs.enqueue("thumbnail", {"image": "a"}, id="a")
    await jobs.enqueue(("a", 1), [1])
    await jobs.enqueue("mail", to="ada")
    await jobs.enqueue_many(thumbnail, [Thumbnail("a")], delay=3)
    await jobs.enqueue_many(movie, [{"title": "M"}])
    await jobs.enqueue_many("thumbnail", [{"image": "a"}])


async def work(tx: JobTransaction) -> None:
    await tx.enqueue(thumbnail, Thumbnail("a"))
    await tx.enqueue("thumbnail", {})


def block(tx: WithinTransaction) -> None:
    assert_type(tx.enqueue(thumbnail, Thumbnail("a")), Job)
    tx.enqueue(mail, to="ada")
"""

MISTAKES = """
async def wrong(tx: JobTransaction, within: WithinTransaction) -> None:
    await jobs.enqueue(thumbnail, Mail("a"))
    await jobs.enqueue(plain, Mail("a"))
    await jobs.enqueue(only_args, "a")
    await jobs.enqueue(thumbnail, Thumbnail("a"), prioritty=3)
    await jobs.enqueue(thumbnail, Thumbnail("a"), delay="3")
    await jobs.enqueue(1.5, Mail("a"))
    await jobs.enqueue_many(thumbnail, [Mail("a")])
    await tx.enqueue(thumbnail, Mail("a"))
    within.enqueue(thumbnail, Mail("a"))
    await jobs.result(thumbnail, 3)
    number: int = await jobs.result(thumbnail, "a")
    jobs.handler("t", slot=3)
    jobs.every("5m", slot=3)
"""


@pytest.mark.unmeasured
def test_a_type_checker_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + MISTAKES)
    first = PROGRAM.count("\n") + 2
    expected = {first + line for line in range(MISTAKES.count("\n") - 1)} - {first}
    command = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--no-pretty", str(program)]
    done = subprocess.run(
        [sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    assert len(expected) == 13
    assert found == expected, done.stdout + done.stderr
