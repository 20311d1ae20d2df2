"""A Django without a project, and backends of one test each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import django
import psycopg
from django.conf import settings
from django.db import connections
from django.test import override_settings

from tests.outbox.support import Place

if not settings.configured:
    settings.configure(DATABASES={})
    django.setup()

NAME = "django.tasks" if find_spec("django.tasks") else "django_tasks"
FRAMEWORK: Any = import_module(NAME)
ERRORS: Any = import_module(f"{NAME}.exceptions")
BASE: Any = import_module(f"{NAME}.base")
InvalidTask: Any = getattr(ERRORS, "InvalidTask", None) or ERRORS.InvalidTaskError
PATIENCE = 60.0


@contextmanager
def configured(*queues: str, use_tz: bool = True, **options: Any) -> Iterator[Any]:
    """Have a backend with these options, on a store of its own; its service is closed in the end."""
    params = {
        "BACKEND": "jobs_service.django.JobsBackend",
        "QUEUES": list(queues),
        "OPTIONS": {"store": "memory:", **options},
    }
    with override_settings(TASKS={"default": params}, USE_TZ=use_tz):
        backend = FRAMEWORK.task_backends["default"]
        try:
            yield backend
        finally:
            backend.jobs.close()
            backend._services.clear()


@contextmanager
def database(place: Place) -> Iterator[None]:
    """Have a database be Django's by the alias "own"."""
    options: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": place.path}
    if not place.is_sqlite:
        found = psycopg.conninfo.conninfo_to_dict(place.url)
        names = {"NAME": found["dbname"], "HOST": found["host"], "USER": found["user"]}
        options = {"ENGINE": "django.db.backends.postgresql", **names}
    connections.databases["own"] = connections.configure_settings({"default": {}, "own": options})["own"]
    try:
        yield
    finally:
        connections["own"].close()
        del connections["own"], connections.databases["own"]


@contextmanager
def running(backend: Any) -> Iterator[None]:
    """Run the backend's tasks meanwhile, as `jobs-service serve` does."""
    thread = threading.Thread(target=backend.jobs.run)
    thread.start()
    try:
        yield
    finally:
        backend.jobs.close()
        thread.join()


def finished(result: Any) -> Any:
    """Wait for a task, and return its result."""
    backend = result.task.get_backend()
    backend.jobs.wait(backend._type(result.task.queue_name), result.id, "finished", timeout=PATIENCE)
    result.refresh()
    return result
