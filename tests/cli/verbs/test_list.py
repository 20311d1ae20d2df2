"""`list`: the jobs of one type or of all."""

from __future__ import annotations

import asyncio
import os
import re

import pytest

from jobs_service import HistoryKind, JobError, JobsService, NewJob, Outcome
from jobs_service.cli.verbs import list as list_verb
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows
from tests.service.support import eventually
from tests.service.unreadable import damage, with_broken_notes


def test_all_types_are_listed_with_their_states(invoke: Invoke, full: str) -> None:
    assert rows(invoke("list", "--store", full).out) == [
        ["TYPE", "ID", "STATE", "PRIORITY", "RUN", "AT", "NOTE,", "DATA"],
        ["email", "a", "succeeded", "0", '{"n":"a"}'],
        ["email", "b", "failed", "0", '{"n":"b"}'],
        ["email", "c", "canceled", "0", '{"n":"c"}'],
        ["email", "d", "running", "0", '{"n":"d"}'],
        ["email", "e", "ready", "0", '{"n":"e"}'],
        ["video", "v", "scheduled", '"x"', "2100-01-01T00:00:00Z"],
    ]


def test_one_type_is_listed_without_its_name(invoke: Invoke, full: str) -> None:
    assert invoke("list", "video", "--store", full).out.splitlines() == [
        "ID  STATE      PRIORITY  RUN AT",
        'v   scheduled       "x"  2100-01-01T00:00:00Z',
    ]


@pytest.mark.parametrize(
    ("word", "ids"),
    [("ready", "e"), ("scheduled", "v"), ("running", "d"), ("succeeded", "a"), ("failed", "b"), ("canceled", "c")],
)
def test_only_jobs_that_do_what_a_word_says_are_listed(invoke: Invoke, full: str, word: str, ids: str) -> None:
    jobs = invoke("list", "--state", word, "-o", "json", "--store", full).json_lines
    assert [job["id"] for job in jobs] == [*ids]


@pytest.mark.parametrize("limit", [1, list_verb.PAGE, list_verb.PAGE + 1, 3 * list_verb.PAGE])
def test_long_lists_are_laid_out_page_by_page_with_one_heading(invoke: Invoke, store: str, limit: int) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.add_many("email", [NewJob(f"{number:04}") for number in range(2 * list_verb.PAGE + 10)])

    arrange(store, fill)
    shown = min(limit, 2 * list_verb.PAGE + 10)
    heading, *lines = invoke("list", "email", "--limit", f"{limit}", "--store", store).out.splitlines()
    assert heading.split() == ["ID", "STATE"]
    assert [line.split()[0] for line in lines] == [f"{number:04}" for number in range(shown)]


def with_damaged_parts(store: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("t1", 60)
        await jobs.add_many("t1", [NewJob(id, {"n": id}, 3) for id in "abcd"])
        await damage(jobs, "b", how=lambda raw: raw[:-2] + b"??")
        await damage(jobs, "c", how=with_broken_notes)

    arrange(store, fill)


@pytest.mark.parametrize("paths", [(), ("data.secret",)])
def test_jobs_of_which_a_part_cannot_be_read_end_no_list(invoke: Invoke, store: str, paths: tuple[str, ...]) -> None:
    with_damaged_parts(store)
    if paths:
        invoke("redact", "t1", *paths, "--store", store)
    jobs = invoke("list", "t1", "-o", "json", "--store", store).json_lines
    assert [(job["id"], job["state"], job["priority"]) for job in jobs] == [
        ("a", "pending", 3),
        ("b", "unreadable", 0),
        ("c", "unreadable", 0),
        ("d", "pending", 3),
    ]
    assert [job["error"]["type"] for job in jobs[1:3]] == ["RecordDamaged", "RecordDamaged"]
    assert jobs[1].keys() == jobs[0].keys()
    _, *lines = rows(invoke("list", "t1", "--store", store).out)
    assert [line[:3] for line in lines] == [
        ["a", "ready", "3"],
        ["b", "unreadable", "0"],
        ["c", "unreadable", "0"],
        ["d", "ready", "3"],
    ]


def test_a_job_whose_data_its_handler_refuses_says_so(invoke: Invoke, email: str) -> None:
    async def squared(number: int) -> int:
        return number * number

    async def refuse() -> None:
        async with JobsService(email) as jobs:
            jobs.handler("email")(squared)
            run = asyncio.create_task(jobs.run())
            await jobs.add("email", "words", "many")

            async def is_refused() -> bool:
                return (await jobs.get("email", "words")).history[0].kind is HistoryKind.STOPPED

            await eventually(is_refused)
            run.cancel()
            await asyncio.wait([run])

    asyncio.run(refuse())
    assert "refused: 1: the data" in invoke("list", "email", "--prefix", "words", "--store", email).out


def test_nothing_to_list_is_said_to_people_only(invoke: Invoke, email: str) -> None:
    assert invoke("list", "--store", email).out == "no jobs\n"
    assert invoke("list", "email", "--store", email).out == "no jobs\n"
    assert invoke("list", "email", "--store", email, "-o", "json").out == ""


@pytest.mark.parametrize("options", [(), ("-o", "json")])
def test_a_type_that_is_not_there_has_no_list(invoke: Invoke, email: str, options: tuple[str, ...]) -> None:
    refused = invoke("list", "typo", "--store", email, *options)
    assert (refused.code, refused.out, refused.error) == (1, "", "there is no type typo")


def test_nobody_finds_jobs_by_what_is_secret(invoke: Invoke, email: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_redaction("email", ["card"])
        await jobs.add("email", "a", {"card": "4111"})

    arrange(email, fill)
    assert invoke("list", "email", "--data", "card~4111", "-o", "json", "--store", email).out == ""
    assert invoke("list", "--data", "card~4111", "-o", "json", "--store", email).out == ""


def test_jobs_that_match_are_found_page_by_page(invoke: Invoke, email: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.add_many("email", [NewJob(f"{number:04}", {"n": number % 2}) for number in range(450)])

    arrange(email, fill)
    jobs = invoke("list", "email", "--data", "n=1", "-o", "json", "--store", email).json_lines
    assert [job["id"] for job in jobs] == [f"{number:04}" for number in range(1, 450, 2)]


@pytest.mark.parametrize(
    "option", ["prefix", "error", "text", "signature", "worker", "older", "younger", "added-before", "data"]
)
def test_an_empty_filter_is_not_taken_for_none(invoke: Invoke, email: str, option: str) -> None:
    refused = invoke("list", "email", f"--{option}", "", "--store", email)
    assert refused.code == 2
    assert f"{option.replace('-', '_')} is empty; leave it out if every job is meant" in refused.error


def test_ids_alone_are_for_other_programs(invoke: Invoke, full: str) -> None:
    ids = invoke("list", "email", "-o", "id", "--store", full).out.splitlines()
    assert ids == [job["id"] for job in invoke("list", "email", "-o", "json", "--store", full).json_lines]
    first = invoke("list", "-o", "id", "--limit", "1", "--store", full).out
    assert first == f"email  {ids[0]}\n"
    assert invoke("list", "email", "--prefix", "nothing", "-o", "id", "--store", full).out == ""


def test_the_newest_are_those_with_the_latest_events(invoke: Invoke, email: str) -> None:
    async def fill(jobs: JobsService) -> None:
        for id in ("c", "a", "d", "b"):
            await jobs.add("email", id, {"n": 1})
        for _ in range(2):  # c, a
            job = await jobs.accept("email", timeout=0)
            assert job is not None
            await job.finish(outcome=Outcome.FAILED, error=JobError("E", ""))

    arrange(email, fill)

    def newest(*options: str) -> str:
        return "".join(invoke("list", "email", "--newest", *options, "-o", "id", "--store", email).out.split())

    assert newest() == "acbd"
    assert newest("--limit", "3") == "acb"
    assert newest("--state", "failed", "--limit", "1") == "a"
    assert newest("--data", "n=1", "--state", "pending") == "bd"


def test_wide_lists_have_attempts_worker_and_ages(invoke: Invoke, full: str) -> None:
    heading, *lines = invoke("list", "email", "-o", "wide", "--store", full).out.splitlines()
    assert re.split(r"\s{2,}", heading)[-5:] == ["ATTEMPTS", "FIRST EVENT", "LAST EVENT", "WORKER", "NOTE, DATA"]
    assert any(f":{os.getpid()}" in line and " ago " in line for line in lines)
