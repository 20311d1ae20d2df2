"""The backend of Django's tasks: what Django's own tests say of backends, and what a worker adds to that."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs_service import InvalidSettings
from jobs_service.django import JobsBackend, worker
from tests.django import tasks
from tests.django.support import BASE, ERRORS, FRAMEWORK, NAME, InvalidTask, configured, finished, running

Status = BASE.TaskResultStatus


@pytest.fixture
def backend() -> Iterator[Any]:
    with configured("default", "slow", max_attempts=1) as backend:
        yield backend


# Enqueueing


@pytest.mark.parametrize("task", [tasks.nothing, tasks.nothing_async])
def test_a_task_is_enqueued_and_found_again(backend: Any, task: Any) -> None:
    assert FRAMEWORK.default_task_backend == backend
    assert isinstance(backend, JobsBackend)
    assert all((backend.supports_defer, backend.supports_async_task, backend.supports_get_result))
    assert backend.supports_priority
    result = task.enqueue(1, two=(3,))
    assert (result.status, result.task, result.args, result.kwargs) == (Status.READY, task, [1], {"two": [3]})
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.is_finished, result.attempts, result.errors, result.worker_ids) == (False, 0, [], [])
    assert timedelta(0) <= timezone.now() - result.enqueued_at < timedelta(minutes=1)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018
    assert task.get_result(result.id) == result
    assert len(result.id) <= 64


async def test_it_is_enqueued_and_found_again_in_coroutines(backend: Any) -> None:
    result = await tasks.nothing.aenqueue(1, two=3)
    assert await tasks.nothing.aget_result(result.id) == result
    await result.arefresh()
    assert result.status == Status.READY


def test_what_a_task_is_enqueued_with_comes_back(backend: Any) -> None:
    task = tasks.nothing.using(priority=100, queue_name="slow", run_after=timezone.now() + timedelta(hours=1))
    result = task.enqueue()
    assert backend.get_result(result.id).task == task
    job = backend.jobs.get("django.slow", result.id)
    assert (job.priority, job.run_at) == (-100, task.run_after)


def test_without_time_zones_times_are_local() -> None:
    with configured("default", use_tz=False):
        task = tasks.nothing.using(run_after=datetime.now() + timedelta(hours=1))
        result = task.get_result(task.enqueue().id)
        assert result.task == task
        assert abs(datetime.now() - result.enqueued_at) < timedelta(minutes=1)


def test_without_queues_every_name_is_one() -> None:
    with configured() as backend, running(backend):
        result = finished(tasks.answer.using(queue_name="any").enqueue())
        assert (result.return_value, result.task.queue_name) == (42, "any")


async def test_what_is_no_task_for_the_backend_is_refused(backend: Any) -> None:
    elsewhere = tasks.nothing
    object.__setattr__(elsewhere := elsewhere.using(), "queue_name", "elsewhere")
    for enqueue in (elsewhere.enqueue, elsewhere.aenqueue):
        with pytest.raises(InvalidTask, match="Queue 'elsewhere' is not valid for backend"):
            await answer if asyncio.iscoroutine(answer := enqueue()) else answer
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.nothing.enqueue(datetime.now(UTC))
    with pytest.raises(TypeError, match="Unsupported type"):
        await tasks.nothing.aenqueue(datetime.now(UTC))
    with pytest.raises(InvalidTask, match=r"tasks\.hidden is a function, not a task"):
        tasks.renamed.enqueue()
    assert [*backend.jobs.list()] == []
    with pytest.raises(InvalidTask, match="between -100 and 100"):
        tasks.nothing.using(priority=101)
    with pytest.raises(InvalidTask, match="aware"):
        tasks.nothing.using(run_after=datetime.now())


async def test_results_that_are_missing_or_of_another_task(backend: Any) -> None:
    for id in ("123", 123, "x" * 100_000):
        with pytest.raises(ERRORS.TaskResultDoesNotExist):
            tasks.nothing.get_result(id)
    with pytest.raises(ERRORS.TaskResultDoesNotExist):
        await tasks.nothing.aget_result("123")
    result = tasks.answer.enqueue()
    with pytest.raises(ERRORS.TaskResultMismatch):
        tasks.nothing.get_result(result.id)


def test_all_threads_share_one_service(backend: Any) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(FRAMEWORK.task_backends["default"]))
    thread.start()
    thread.join()
    assert found[0] is not backend
    assert found[0].jobs is backend.jobs


# Running


@pytest.mark.parametrize(("task", "value"), [("nothing", None), ("nothing_async", None), ("echo", [[1], {"two": 3}])])
def test_a_task_is_run(backend: Any, task: str, value: Any) -> None:
    with running(backend):
        result = finished(getattr(tasks, task).enqueue(1, two=3))
    assert (result.status, result.is_finished, result.return_value) == (Status.SUCCESSFUL, True, value)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])


@pytest.mark.parametrize("kind", ["ValueError", "SystemExit", "KeyboardInterrupt", "Declined"])
def test_a_task_fails(backend: Any, kind: str) -> None:
    with running(backend):
        result = finished(tasks.failing.enqueue(kind))
    assert (result.status, result.is_finished, result.attempts) == (Status.FAILED, True, 1)
    assert result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018
    [error] = result.errors
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.endswith(f"{kind}: This task failed due to {kind}\nin two lines\n")
    assert error.exception_class.__name__ == kind


def test_errors_within_others(backend: Any) -> None:
    with running(backend):
        inner, given_up, no_json = (
            finished(task.enqueue()) for task in (tasks.complex_exception, tasks.given_up, tasks.no_json)
        )
    assert 'ValueError(ValueError("This task failed"))' in inner.errors[0].traceback
    assert inner.errors[0].exception_class is ValueError
    assert given_up.errors[0].exception_class is tasks.Declined
    assert (no_json.status, no_json.errors[0].exception_class) == (Status.FAILED, TypeError)
    assert "Unsupported type" in no_json.errors[0].traceback


def test_a_task_gets_its_context(backend: Any) -> None:
    with running(backend):
        result = finished(tasks.of_context.enqueue(1))
    assert result.return_value == [result.id, result.id, "RUNNING"]


def test_tasks_run_in_the_order_of_their_priorities() -> None:
    with configured("default", slots=1) as backend:
        added = [tasks.nothing.using(priority=priority).enqueue() for priority in (-100, 0, 100, 7)]
        with running(backend):
            order = sorted(map(finished, added), key=lambda result: result.started_at)
    assert [result.task.priority for result in order] == [100, 7, 0, -100]


def test_a_task_that_fails_is_tried_again_and_django_hears_of_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    with configured("default", max_attempts=3, backoff=0) as backend, caplog.at_level(logging.DEBUG, NAME):
        with running(backend):
            result = finished(tasks.second_time.enqueue())
        told = [record.getMessage() for record in caplog.records if record.name == NAME]
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, 2, 2)
    assert result.started_at <= result.last_attempted_at
    assert [error.exception_class for error in result.errors] == [tasks.Declined]
    assert all(result.id in line for line in told)
    states = ["state=RUNNING", "state=RUNNING", "state=SUCCESSFUL"]
    ends = [line.rpartition(" ")[2] for line in told]
    ends.remove("backend=default")  # said by the caller's thread, when the job may be running already
    assert ends == states


def test_django_logs_a_failure_with_its_exception(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    with running(backend), caplog.at_level(logging.ERROR, NAME):
        finished(tasks.failing.enqueue("ValueError"))
    [record] = [record for record in caplog.records if record.name == NAME]
    assert record.getMessage().endswith("state=FAILED")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_a_task_that_waits_for_another_attempt_is_ready() -> None:
    with configured("default", backoff=3600) as backend:
        result = tasks.failing.enqueue("Declined")
        with running(backend), backend.jobs.subscribe("django.default", result.id) as events:
            next(event for event in events if event.state == "pending" and event.retrying)
        result.refresh()
        assert (result.status, result.attempts) == (Status.READY, 1)
        assert [error.exception_class for error in result.errors] == [tasks.Declined]


def test_a_task_that_is_removed_while_it_runs_has_failed(backend: Any) -> None:
    with running(backend):
        result = tasks.until_stopped.enqueue()
        backend.jobs.wait("django.default", result.id, "running", timeout=60)
        result.refresh()
        assert result.status == Status.RUNNING
        backend.jobs.remove("django.default", result.id)
        finished(result)
    assert result.status == Status.FAILED
    assert result.errors[0].exception_class_path == "jobs_service.errors.JobCanceled"


# What is wrong with the settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sotre": "memory:"}, "there is no option sotre='memory:'"),
        ({"slots": -1}, "option slots=-1: allowed is an integer >= 0"),
        ({"store": "nowhere:x"}, "nowhere"),
        ({"outbox": "elsewhere"}, "outbox='elsewhere': allowed are the aliases in DATABASES"),
    ],
)
def test_the_check_names_a_wrong_option(options: dict[str, Any], said: str) -> None:
    params = {"QUEUES": ["default"], "OPTIONS": {"store": "memory:", **options}}
    [error] = JobsBackend("default", params).check()
    assert said in error.msg
    assert "TASKS['default']" in error.msg


def test_the_worker_names_a_backend_that_it_does_not_have(backend: Any) -> None:
    assert worker.default is backend.jobs
    with pytest.raises(InvalidSettings, match="The connection 'other' doesn't exist"):
        worker.other  # noqa: B018
