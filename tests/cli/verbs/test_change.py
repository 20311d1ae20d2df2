"""`retry`, `cancel` and `remove` for all jobs that match a filter, `run` for one, and ids by their beginnings."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs_service import JobError, JobNotFound, JobsService, NewJob, Outcome
from jobs_service.service.bulk_actions import READ_AT_ONCE, TYPE
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, on_terminal, started

MANY = 10_000


async def fail(jobs: JobsService, *ids: str, error: str = "TimeoutError") -> None:
    """Have jobs fail, which are made."""
    await jobs.add_many("email", [NewJob(id, {"to": f"{id}@example.org"}) for id in ids])
    for job in await jobs.accept_many("email", len(ids), timeout=0):
        await job.finish(outcome=Outcome.FAILED, error=JobError(error, "no answer"))


@pytest.fixture
def failed(email: str) -> str:
    """A store with three failed jobs, one of them with another error, and one that is scheduled."""

    async def fill(jobs: JobsService) -> None:
        await fail(jobs, "ada", "bob")
        await fail(jobs, "eve", error="ValueError")
        await jobs.add("email", "later", run_at=4e9)

    arrange(email, fill)
    return email


def states(store: str) -> dict[str, str]:
    """Return the state for people of each job of the type."""

    async def read(jobs: JobsService) -> dict[str, str]:
        return {str(job.id): str(job.outcome or job.state) for job in [job async for job in jobs.list("email")]}

    return arrange(store, read)


@pytest.mark.parametrize(
    ("verb", "filter", "changed", "word"),
    [
        ("retry", ["--error", "TimeoutError"], {"ada": "pending", "bob": "pending"}, "retried"),
        ("retry", ["--all"], {"ada": "pending", "bob": "pending", "eve": "pending"}, "retried"),
        ("retry", ["--prefix", "e", "--younger", "1h"], {"eve": "pending"}, "retried"),
        ("cancel", ["--all"], {"later": None}, "canceled"),
        (
            "remove",
            ["--data", "to~@example.org", "--attempts", "1"],
            {"ada": None, "bob": None, "eve": None},
            "removed",
        ),
        ("remove", ["--state", "scheduled"], {"later": None}, "removed"),
    ],
)
def test_exactly_the_jobs_that_were_counted_are_changed(
    invoke: Invoke, failed: str, verb: str, filter: Sequence[str], changed: dict[str, str | None], word: str
) -> None:
    before = states(failed)
    counted = invoke(verb, "email", *filter, "--dry-run", "--store", failed)
    jobs = f"{len(changed)} job" + ("s" if len(changed) > 1 else "")
    assert (counted.code, counted.out.startswith(f"{jobs} of type email match")) == (0, True)
    assert states(failed) == before
    asked = invoke(verb, "email", *filter, "--store", failed)
    assert (asked.code, asked.error) == (
        2,
        f"{verb.capitalize()} {jobs} of type email? Nobody is here to answer; --yes does",
    )
    assert states(failed) == before
    done = invoke(verb, "email", *filter, "--yes", "--store", failed)
    assert (done.code, done.err) == (0, "")
    first, last = done.out.splitlines()
    assert re.fullmatch(rf"{jobs} of type email to {verb}, by bulk action \S+", first)
    assert last == f"{jobs} of type email {word}"
    after = {id: state for id, state in {**before, **changed}.items() if state is not None}
    assert states(failed) == after


def test_programs_get_the_figures_and_the_id_of_the_bulk_action(invoke: Invoke, failed: str) -> None:
    counted = invoke("retry", "email", "--all", "--dry-run", "-o", "json", "--store", failed).json
    assert counted == {"type": "email", "action": "resubmit", "counted": 3, "bulk_action": None}
    done = invoke("retry", "email", "--all", "--yes", "-o", "json", "--store", failed).json
    id = done["bulk_action"]
    figures = {"read": 3, "matched": 3, "changed": 3, "too_large": 0}
    assert {**done, "bulk_action": None} == {**counted, **figures}
    job = invoke("show", TYPE, id, "-o", "json", "--store", failed).json
    assert (job["outcome"], job["data"]["counted"]) == ("succeeded", 3)
    assert job["data"]["who"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["retry", "email"], "name an ID, or a filter such as --state; --all is every job of the type"),
        (["remove", "email", "--all", "--state", "failed"], "--all: it is every job of the type; leave the filter out"),
        (["cancel", "email", "ada", "--state", "ready"], "the ID is that of one job; leave the filter, --all and"),
        (["remove", "email", "ada", "--dry-run"], "the ID is that of one job"),
        (["remove", "email", "--state", "failed", "--force"], "--force: it is about one job; name its ID"),
        (["remove", "email", "--state", "failed", "--wait", "1"], "--wait: it is about one job; name its ID"),
        (["retry", "email", "--state", ""], "state is empty; leave it out if every job is meant"),
        (["retry", "command", "--all"], "commands are run again one by one"),
    ],
)
def test_what_could_mean_more_jobs_than_somebody_thinks_is_refused(
    invoke: Invoke, failed: str, arguments: list[str], complaint: str
) -> None:
    invoke("types", "set", "command", "60", "--store", failed)
    before = states(failed)
    refused = invoke(*arguments, "--yes", "--store", failed)
    assert refused.code == 2
    assert complaint in refused.error
    assert states(failed) == before


def test_a_person_is_asked_and_what_fails_while_they_think_is_not_retried(failed: str, tmp_path: Path) -> None:
    def no() -> str:
        return "n\n"

    def yes() -> str:
        arrange(failed, lambda jobs: fail(jobs, "zoe"))
        return "y\n"

    command = ("retry", "email", "--state", "failed", "--store", failed)
    code, shown = on_terminal(*command, cwd=tmp_path, answers=("[y/N]", no))
    assert (code, "nothing was done" in shown, states(failed)["ada"]) == (1, True, "failed")
    code, shown = on_terminal(*command, cwd=tmp_path, answers=("Retry 3 jobs of type email? [y/N]", yes))
    assert code == 0, shown
    assert "3 jobs of type email retried" in shown
    assert states(failed) == {**dict.fromkeys(("ada", "bob", "eve", "later"), "pending"), "zoe": "failed"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_was_interrupted_can_be_seen_and_continued(
    invoke: Invoke, email: str, tmp_path: Path, number: signal.Signals
) -> None:
    async def interrupt(jobs: JobsService) -> str:
        await jobs.add_many("email", [NewJob(f"{n:05}") for n in range(MANY)])
        with started("remove", "email", "--all", "--yes", "--store", email, cwd=tmp_path) as removing:
            assert removing.stdout is not None
            [id] = re.findall(r"by bulk action (\S+)", await asyncio.to_thread(removing.stdout.readline))
            async with jobs.subscribe(TYPE, id) as events:
                async for event in events:
                    if event.progress is not None and event.progress.done:
                        removing.send_signal(number)
                        break
            _, err = await asyncio.to_thread(removing.communicate, timeout=HANG)
        assert removing.returncode == (130 if number is signal.SIGINT else -number)
        assert (f"jobs-service run {TYPE} {id} does" in err) is (number is signal.SIGINT)
        return str(id)

    async def supervised() -> str:
        async with JobsService(email) as jobs:
            return await interrupt(jobs)

    id = asyncio.run(supervised())
    left = len(states(email))
    assert 0 < left < MANY
    assert id in invoke("list", TYPE, "-o", "id", "--store", email).out
    done = invoke("run", TYPE, id, "-o", "json", "--store", email)
    assert done.code == 0, done.err
    assert MANY - READ_AT_ONCE <= done.json["changed"] <= MANY  # what a page has changed is noted after it
    assert states(email) == {}


def test_what_was_interrupted_can_be_ended(invoke: Invoke, email: str) -> None:
    async def add(jobs: JobsService) -> None:
        await jobs.set_type_timeout(TYPE, 30)
        await jobs.add(TYPE, "mine", {"action": "remove", "type": "email", "filter": {}})
        await jobs.add("email", "ada")

    arrange(email, add)
    assert invoke("cancel", TYPE, "mine", "--store", email).out == f"job mine of type {TYPE}: removed\n"
    assert invoke("run", TYPE, "mine", "--store", email).error == f"there is no job mine of type {TYPE}"
    assert states(email) == {"ada": "pending"}


def test_a_bulk_action_that_fails_is_an_answer_of_no(invoke: Invoke, email: str) -> None:
    async def add(jobs: JobsService) -> None:
        await jobs.set_type_timeout(TYPE, 30)
        await jobs.add(TYPE, "mine", {"action": "remove", "type": "email", "filter": {"stat": "failed"}})

    arrange(email, add)
    done = invoke("run", TYPE, "mine", "--store", email)
    assert done.code == 1
    assert "bulk action mine failed: BadFilter: stat: unknown" in done.err


def test_a_job_that_waits_runs_now(invoke: Invoke, failed: str) -> None:
    assert invoke("run", "email", "later", "--store", failed).out == "job later of type email: ready\n"
    refused = invoke("run", "email", "ada", "--store", failed)
    assert (refused.code, refused.error) == (1, "job ada of type email does not wait: it is failed")


# Ids by their beginnings


def test_a_unique_beginning_is_enough_to_look(invoke: Invoke, failed: str) -> None:
    assert invoke("show", "email", "la", "-o", "json", "--store", failed).json["id"] == "later"
    watched = invoke("watch", "email", "ad", "-o", "json", "--store", failed)
    assert (watched.code, watched.json["id"]) == (0, "ada")
    invoke("add", "email", "lat", "--store", failed)
    assert invoke("show", "email", "lat", "-o", "json", "--store", failed).json["id"] == "lat"
    several = invoke("show", "email", "la", "--store", failed)
    assert (several.code, several.error) == (
        1,
        "there is no job la of type email; several begin like that: lat, later",
    )
    missing = invoke("show", "email", "nobody", "--store", failed)
    assert (missing.code, missing.error) == (1, "there is no job nobody of type email")


@pytest.mark.parametrize("verb", ["retry", "cancel", "remove", "run", "resubmit"])
def test_who_changes_a_job_by_a_beginning_is_asked(invoke: Invoke, failed: str, tmp_path: Path, verb: str) -> None:
    before = states(failed)
    id = "later" if verb == "run" else "ada"
    question = f"There is no job {id[:2]} of type email; {verb} {id}?"
    refused = invoke(verb, "email", id[:2], "--store", failed)
    assert (refused.code, refused.error) == (2, f"{question} Nobody is here to answer; --yes does")
    code, _ = on_terminal(verb, "email", id[:2], "--store", failed, cwd=tmp_path, answers=(question, lambda: "\n"))
    assert (code, states(failed)) == (1, before)
    done = invoke(verb, "email", id[:2], "--yes", "--store", failed)
    assert (done.code, f"job {id} of type email: " in done.out) == (0, True)


def test_all_of_ten_thousand_jobs_are_counted_and_changed(invoke: Invoke, email: str) -> None:
    async def add(jobs: JobsService) -> None:
        await jobs.add_many("email", [NewJob(f"{n:05}", {"n": n % 2}) for n in range(MANY)])

    arrange(email, add)
    done = invoke("cancel", "email", "--data", "n=1", "--yes", "-o", "json", "--store", email)
    assert (done.json["counted"], done.json["changed"]) == (MANY // 2, MANY // 2)
    with pytest.raises(JobNotFound):
        arrange(email, lambda jobs: jobs.get("email", "00001"))
