"""What of a job may be shown: paths, values, and the texts that tell of them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlencode

import pytest

from jobs_service import InvalidSettings, JobError, JobsService, Outcome, RecordDamaged, RunningJob
from jobs_service.json_data import MAX_DEPTH
from jobs_service.model import Job
from jobs_service.redaction import NO_REDACTION, REDACTED, Redaction, checked, is_marked

X = REDACTED


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("card.number", {"card": {"number": "4111", "of": "Ada"}}, {"card": {"number": X, "of": "Ada"}}),
        ("card", {"card": {"number": "4111"}, "to": 1}, {"card": X, "to": 1}),
        ("*.t", {"a": {"t": 7, "b": {"t": 8}}, "t": 9}, {"a": {"t": X, "b": {"t": 8}}, "t": 9}),
        ("**.token", {"token": 9, "a": [{"b": {"token": 8}}]}, {"token": X, "a": [{"b": {"token": X}}]}),
        ("a.**", {"a": {"b": 1}, "c": 2}, {"a": X, "c": 2}),
        ("cards.number", {"cards": [{"number": 1}, {"number": 2}]}, {"cards": [{"number": X}, {"number": X}]}),
        ("cards.*.number", {"cards": [{"number": 1}]}, {"cards": [{"number": X}]}),
        ("tags.*", {"tags": ["a", "b"]}, {"tags": [X, X]}),
        ("tags.1", {"tags": ["a", "b"]}, {"tags": ["a", X]}),
        ("number", [{"number": 1}, 2], [{"number": X}, 2]),
        ("data:", "everything", X),
        ("data:", ["every", "thing"], X),
        ("result:number", {"number": 1}, {"number": 1}),
        (r"a\.b", {"a.b": 1, "a": {"b": 2}}, {"a.b": X, "a": {"b": 2}}),
        (r"\*", {"*": 1, "b": 2}, {"*": X, "b": 2}),
        (r"data\:x", {"data:x": 1}, {"data:x": X}),
        (r"data:x\:y", {"x:y": 1, "x": 2}, {"x:y": X, "x": 2}),
        (r"a\\.b", {"a\\": {"b": 1}}, {"a\\": {"b": X}}),
        ("token", {"token": None}, {"token": None}),
        ("token", "a text", "a text"),
        ("token", None, None),
    ],
)  # fmt: skip
def test_a_path_hides_what_it_names_and_nothing_else(path: str, value: Any, shown: Any) -> None:
    assert Redaction([path]).data(value) == shown


@pytest.mark.parametrize(
    "paths",
    [
        "card",
        7,
        [7],
        [""],
        ["a..b"],
        ["a."],
        ["error:stack"],
        ["progress:done"],
        ["error:message.x"],
        ["a" * 201],
        ["dta:card"],
        [r"a\\:b"],
        [":a"],
    ],
)
def test_what_is_no_path_is_refused(paths: Any) -> None:
    with pytest.raises(InvalidSettings, match="redact"):
        Redaction(paths)


def test_a_path_counts_once_and_there_are_at_most_a_hundred() -> None:
    assert checked(["a", "b", "a"]) == ("a", "b")
    with pytest.raises(InvalidSettings, match="at most 100"):
        checked(map(str, range(101)))


def test_the_mark_in_data_is_found() -> None:
    assert is_marked({"a": [X]})
    assert not is_marked({"a": ["[redacted] not"]})


async def finished(data: Any, result: Any = None, error: JobError | None = None, progress: str = "") -> Job:
    """Return a job of these parts, as it is in a store."""
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("pay", 10)
        await jobs.add("pay", "1", data)
        job = await jobs.accept("pay")
        assert isinstance(job, RunningJob)
        if progress:
            job = await job.progress(1, 2, progress)
        if error is None:
            await job.finish(result=result)
        else:
            await job.finish(outcome=Outcome.FAILED, result=result, error=error)
        return await jobs.get("pay", "1")


async def test_a_secret_is_in_nothing_that_is_shown_of_a_job() -> None:
    secret = 'S3cret "quoted" / \n two lines é'
    written = [secret, repr(secret), json.dumps(secret), f"cut off: {secret[:10]}...", f"...{secret[-10:]}"]
    error = JobError("ValueError", " and ".join(written), f"Traceback\n  pay({secret!r})\n{secret}")
    job = await finished(
        {"card": secret, "to": "Ada"}, {"token": "T-12345678"}, error, f"charging {secret}, T-12345678"
    )
    shown = Redaction(["card", "result:token"]).job(job)
    assert shown.data == {"card": X, "to": "Ada"}
    assert shown.result == {"token": X}
    assert shown.error is not None
    assert shown.error.type == "ValueError"
    assert shown.progress is not None
    assert (shown.progress.done, shown.progress.message) == (1, f"charging {X}, {X}")
    text = repr(shown.to_dict()) + repr(shown.history) + repr(shown._record.json + shown._record.run_data)
    for needle in ("S3cret", "two lines", "12345678"):
        assert needle not in text
    assert (shown.state, shown.outcome, shown.seq, shown.attempts) == (job.state, job.outcome, job.seq, job.attempts)
    assert [event.kind for event in shown.history] == [event.kind for event in job.history]


SECRET = "pass word/+%é&=Ω-42"


@pytest.mark.parametrize(
    "written",
    [
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote(SECRET).lower(),
        quote_plus(SECRET).lower(),
        quote(quote(SECRET, safe=""), safe=""),
        quote_plus(quote_plus(quote_plus(SECRET))),
        "".join(f"%{byte:02x}" for byte in SECRET.encode()),
        urlencode({"q": SECRET, "n": 1}),
        urlencode({"q": SECRET[:9]}),
        f"...{quote(SECRET[-9:])}",
    ],
)
async def test_a_secret_is_in_no_address_however_it_is_encoded_there(written: str) -> None:
    message = f"GET https://example.org/a%20b?{written}&c=d+e failed: 100% of 1+1 tries"
    job = await finished({"password": SECRET, "pin": "x y"}, None, JobError("E", f"{message}; pin=x+y"))
    error = Redaction(["password", "pin"]).job(job).error
    assert error is not None
    for decode in (str, unquote, unquote_plus, lambda text: unquote_plus(unquote(text))):
        for part in ("pass word", "pass+word", "-42", "x y"):
            assert part not in decode(error.message), error.message
    assert error.message.endswith(f"failed: 100% of 1+1 tries; pin={X}")
    assert Redaction(["pin"]).job(await finished({"pin": "other"}, None, JobError("E", message))).error == JobError(
        "E", message
    )


@pytest.mark.parametrize("path", ["**.token", ".".join(["**"] * 60 + ["token"])])
def test_a_rule_for_any_depth_costs_no_more_in_nested_data(path: str) -> None:
    lists: Any = {"token": 1}
    shown: Any = {"token": X}
    for _ in range(MAX_DEPTH // 2):
        lists, shown = [lists], [shown]
    for _ in range(MAX_DEPTH // 2 - 1):
        lists, shown = {"a": lists}, {"a": shown}
    assert Redaction([path]).data(lists) == shown


async def test_parts_of_errors_and_the_message_of_progress_can_be_hidden_altogether() -> None:
    job = await finished(None, None, JobError("KeyError", "whatever", "lines"), "half done")
    shown = Redaction(["error:message", "error:traceback", "progress:"]).job(job)
    assert shown.error == JobError("KeyError", X, X)
    assert shown.progress is not None
    assert shown.progress.message == X
    assert Redaction(["error:"]).job(job).error == JobError(X, X, X)


async def test_short_numbers_are_removed_from_texts_as_words_and_very_short_ones_are_not() -> None:
    job = await finished({"pin": 4711, "cvv": "123", "n": 1}, None, JobError("E", "pin 4711, cvv=123, 81234 at line 1"))
    shown = Redaction(["pin", "cvv", "n"]).job(job)
    assert shown.error is not None
    assert shown.error.message == f"pin {X}, cvv={X}, 81234 at line 1"


async def test_the_texts_of_a_job_with_very_many_secrets_are_hidden_altogether() -> None:
    job = await finished({"all": [f"secret-{number}" for number in range(1001)]}, None, JobError("E", "ordinary"))
    shown = Redaction(["all"]).job(job)
    assert shown.error is not None
    assert shown.error.message == X


async def test_of_what_cannot_be_read_nothing_is_shown() -> None:
    job = await finished({"card": "4111-1111"}, None, JobError("E", "4111-1111"))
    job._record.json = b'{"card": "4111-1111'  # type: ignore[misc]
    shown = Redaction(["card"]).job(job)
    with pytest.raises(RecordDamaged):
        _ = shown.data
    assert shown.error == JobError(X, X, "")


async def test_events_are_redacted_alike() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("pay", 10)
        await jobs.add("pay", "1", {"card": "4111-1111"})
        job = await jobs.accept("pay")
        assert job is not None
        await job.finish(result={"card": "4111-1111"}, outcome=Outcome.FAILED, error=JobError("E", "4111-1111"))
        events = [Redaction(["card"]).event(event) async for event in jobs.subscribe("pay", "1")]
    assert "4111" not in repr([event.to_dict() for event in events])


async def test_without_rules_the_job_itself_is_shown() -> None:
    job = await finished({"a": 1})
    assert NO_REDACTION.job(job) is job
    assert not NO_REDACTION
