"""`types`: showing, setting and clearing."""

from __future__ import annotations

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows


def test_setting_a_timeout_makes_the_type_and_the_store(invoke: Invoke, store: str) -> None:
    done = invoke("types", "set", "email", "1m30s", "--store", store)
    assert (done.code, done.out) == (0, "type email: activity timeout 90 s\n")
    assert invoke("types", "--store", store, "-o", "json").json == {
        "type": "email",
        "timeout": 90.0,
        "ready": 0,
        "scheduled": 0,
        "retrying": 0,
        "running": 0,
        "paused": False,
        "succeeded": 0,
        "failed": 0,
        "canceled": 0,
        "unreadable": 0,
    }


def test_types_counts_jobs_by_state(invoke: Invoke, store: str) -> None:
    async def arrangement(jobs: JobsService) -> None:
        for type in ("email", "video"):
            await jobs.set_type_timeout(type, 60)
        for number in range(6):
            await jobs.add("email", f"{number}")
        for _ in range(3):
            assert await jobs.accept("email", timeout=0)
        finished = await jobs.accept("email", timeout=0)
        assert finished is not None
        await finished.finish()
        await jobs.add("email", "later", run_at=4e9)
        await jobs.add("email", "overdue", run_at=1.0)
        await jobs.add("video", "v")
        await jobs.clear_type_timeout("video")
        await jobs.pause("video")

    arrange(store, arrangement)
    shown = invoke("types", "--store", store)
    assert rows(shown.out) == [
        ["TYPE", "TIMEOUT", "READY", "SCHEDULED", "RUNNING", "SUCCEEDED", "PAUSED"],
        ["email", "60", "s", "3", "1", "3", "1", "no"],
        ["video", "none", "1", "0", "0", "0", "yes"],
    ]
    counts = invoke("types", "--store", store, "-o", "json").json_lines
    assert [(count["type"], count["timeout"]) for count in counts] == [("email", 60.0), ("video", None)]


def test_a_cleared_type_keeps_its_jobs_and_takes_no_new_ones(invoke: Invoke, email: str) -> None:
    invoke("add", "email", "first", "--store", email)
    cleared = invoke("types", "clear", "email", "--store", email)
    assert cleared.code == 0
    assert cleared.out.startswith("type email: no activity timeout any more")
    assert invoke("show", "email", "first", "--store", email).code == 0
    refused = invoke("add", "email", "second", "--store", email)
    assert refused.code == 1
    assert refused.error == (
        "there is no type email: the start of its handler makes it, or jobs-service types set email SECONDS"
    )


def test_setting_and_clearing_print_json(invoke: Invoke, store: str) -> None:
    assert invoke("types", "set", "json:7", "5", "-o", "json", "--store", store).json == {"type": 7, "timeout": 5.0}
    assert invoke("types", "clear", "json:7", "-o", "json", "--store", store).json == {"type": 7, "timeout": None}


def test_the_store_may_be_named_before_and_after_the_sub_verb(invoke: Invoke, email: str) -> None:
    for arguments in (
        ["--store", email, "types"],
        ["types", "--store", email],
        ["types", "--store", email, "set", "email", "5"],
        ["types", "set", "email", "5", "--store", email],
        ["--store", "lmdb:/nonexistent/elsewhere", "types", "set", "email", "5", "--store", email],
    ):
        assert invoke(*arguments).code == 0, arguments


def test_a_store_without_types_says_how_to_make_one(invoke: Invoke, email: str) -> None:
    invoke("types", "clear", "email", "--store", email)
    assert invoke("types", "--store", email).out == "no types; jobs-service types set TYPE SECONDS makes one\n"
    assert invoke("types", "--store", email, "-o", "json").out == ""
