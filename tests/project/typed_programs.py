"""A program of which a type checker must find nothing, and lines for its end of which it must find each."""

from __future__ import annotations

PROGRAM = """
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from jobs_service import (
    PROVIDED,
    BlockingJob,
    EndedJob,
    Handler,
    Handlers,
    Job,
    JobsService,
    JobTransaction,
    RunningJob,
)
from jobs_service.service.transactions import WithinTransaction

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


# What follows are the shapes of handlers that there are, and of arguments that a literal can be.


@jobs.handler("numbers and names")
async def numbers_and_names(args: list[int | str]) -> int:
    return 1


@jobs.handler("optional")
async def optional(job: RunningJob, args: Thumbnail | None = None) -> int:
    return 1


@jobs.handler("optional text")
def optional_text(payload: str = "a") -> int:
    return 1


@jobs.handler("keyword-only")
def keyword_only(job: BlockingJob, *, to: str, subject: str = "hi") -> int:
    return 1


@jobs.handler("three")
async def three(a: int, b: int = 1, *, c: int) -> int:
    return 1


@jobs.handler("paid")
async def paid(job: RunningJob, args: Thumbnail) -> EndedJob[int]:
    async def pay(tx: JobTransaction) -> int:
        return 3

    return await job.finish_with(pay)


class Shop:
    def __init__(self) -> None:
        self.order_handler = jobs.handler("order")(self.order)

    async def order(self, args: Thumbnail) -> int:
        return 1

    def bill(self, job: BlockingJob, to: str, total: int = 1) -> str:
        return ""


class Database:
    pass


part = Handlers()
part.provide(Database, Database)


@part.handler("with resource")
async def with_resource(job: RunningJob, args: Mail, *, database: Database = PROVIDED) -> int:
    return 1


@part.handler("keywords and resource")
def keywords_and_resource(to: str, subject: str = "hi", *, database: Database = PROVIDED) -> str:
    return ""


@jobs.middleware
async def around(job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
    return await call_next()


jobs.include(part, prefix="part.")
shop = Shop()
order = jobs.handler("order 2")(shop.order)
bill = jobs.handler("bill")(shop.bill)


async def every_shape(anything: Handler[Any, Any], kept: Handler[Thumbnail, int]) -> None:
    await jobs.enqueue(numbers_and_names, [1], unique=True)
    await jobs.enqueue(numbers_and_names, [])
    await jobs.enqueue(optional)
    await jobs.enqueue(optional, None)
    await jobs.enqueue(optional, Thumbnail("a"), id="a")
    await jobs.enqueue(optional, priority=3)
    await jobs.enqueue(optional_text)
    await jobs.enqueue(optional_text, "b")
    await jobs.enqueue(keyword_only, to="ada")
    await jobs.enqueue(keyword_only, to="ada", delay=3, time_limit=1)
    await jobs.enqueue(keyword_only, {"to": "ada"}, run_at=timedelta(1))
    await jobs.enqueue(three, a=1, c=2)
    await jobs.enqueue(tick, time_limit=3)
    await jobs.enqueue(shop.order_handler, Thumbnail("a"))
    await jobs.enqueue(order, Thumbnail("a"))
    await jobs.enqueue(bill, to="ada")
    await jobs.enqueue(bill, {"to": "ada", "total": 3}, id="a")
    await jobs.enqueue(with_resource, Mail("ada"))
    await jobs.enqueue(with_resource, Mail("ada"), id="a")
    await jobs.enqueue(keywords_and_resource, to="ada")
    await jobs.enqueue(keywords_and_resource, {"to": "ada"}, id="a")
    await jobs.enqueue(anything)
    await jobs.enqueue(anything, 3, id="a")
    await jobs.enqueue(anything, to="ada")
    await jobs.enqueue(kept, Thumbnail("a"))
    await jobs.enqueue_many(numbers_and_names, [[1], ["a"]])
    await jobs.enqueue_many(numbers_and_names, ([i] for i in range(3)))
    await jobs.enqueue_many(bill, [{"to": "ada"}], unique=True)
    await jobs.enqueue_many(only_job, [None, None])
    await jobs.enqueue_many(anything, [3])
    assert_type(await jobs.result(bill, "a"), str)
    assert_type(await jobs.result(paid, "a"), int)
    assert_type(await jobs.result(with_resource, "a"), int)
    handlers: list[Handler[Any, Any]] = [thumbnail, bill, optional, tick]
    typed: Handler[Thumbnail, int] = order
    print(handlers, typed)


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
    assert_type(tx.enqueue_many(mail, [{"to": "ada"}], delay=3), list[Job])
"""

MISTAKES = """
async def wrong(tx: JobTransaction, within: WithinTransaction, job: RunningJob) -> None:
    paid_text: EndedJob[str] = await job.finish_with(lambda tx: 3)
    number_2: str = await jobs.result(paid, "a")
    await jobs.enqueue(thumbnail, Mail("a"))
    await jobs.enqueue(plain, Mail("a"))
    await jobs.enqueue(only_args, "a")
    await jobs.enqueue(thumbnail, Thumbnail("a"), prioritty=3)
    await jobs.enqueue(thumbnail, Thumbnail("a"), delay=b"3")
    await jobs.enqueue(1.5, Mail("a"))
    await jobs.enqueue_many(thumbnail, [Mail("a")])
    await tx.enqueue(thumbnail, Mail("a"))
    within.enqueue(thumbnail, Mail("a"))
    await jobs.result(thumbnail, 3)
    number: int = await jobs.result(thumbnail, "a")
    jobs.handler("t", slot=3)
    jobs.every("5m", slot=3)
    await jobs.enqueue(thumbnail, {"image": "a"})
    await jobs.enqueue(thumbnail, {"image": "a"}, id="a")
    await jobs.enqueue(thumbnail)
    await jobs.enqueue(thumbnail, id="a")
    await jobs.enqueue(thumbnail, image="a")
    await jobs.enqueue(movie, {"titel": "M"})
    await jobs.enqueue(mail)
    await jobs.enqueue(mail, too="ada")
    await jobs.enqueue(mail, to="ada", subjekt="hi")
    await jobs.enqueue(mail, to=3)
    await jobs.enqueue(mail, ["ada"])
    await jobs.enqueue(mail, to="ada", delay=b"3")
    await jobs.enqueue(by_keyword, to="ada")
    await jobs.enqueue(keyword_only, to="ada", sujet="hi")
    await jobs.enqueue(three, a=1)
    await jobs.enqueue(bill, to="ada", total="1")
    await jobs.enqueue(tick, to="ada")
    await jobs.enqueue(optional, Mail("a"))
    await jobs.enqueue(optional_text, payload="b")
    await jobs.enqueue(numbers_and_names, [1.5])
    await jobs.enqueue(shop.order, Thumbnail("a"))
    await jobs.enqueue_many(thumbnail, [{"image": "a"}])
    await jobs.enqueue_many(mail, [["ada"]])
    await jobs.enqueue_many(thumbnail, [Thumbnail("a")], id="a")
    await tx.enqueue(thumbnail, {"image": "a"})
    await tx.enqueue(mail, too="ada")
    await tx.enqueue_many(thumbnail, [Mail("a")])
    within.enqueue(thumbnail)
    within.enqueue(mail, to=3)
    within.enqueue_many(thumbnail, [Mail("a")])
    await jobs.enqueue(with_resource, Thumbnail("a"))
    jobs.middleware(7)
"""
