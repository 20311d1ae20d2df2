"""What only a few runs draw, each from a random stream of its own; in all others it is what it always is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final
from unittest.mock import patch

from jobs_service import Settings
from jobs_service.actors import activity_monitor, notifier, process_row, sampler
from jobs_service.batching import group_commit
from jobs_service.layer import last_records, listing, paging, process_rows, transaction
from jobs_service.runner import heartbeat, run_endings, schedule, worker_pool
from jobs_service.service import queries
from jobs_service.store.fdb import watches as fdb_watches
from jobs_service.store.lmdb import watches, writer
from jobs_service.testing import Choices
from tests.simulation.sizes import few_made_up, few_subscribed, files_without_directories, small_pages, soon_unread

_WITH_SETTINGS: Final = 0.04
"""The share of runs in which the settings below are drawn."""

_SETTINGS: Final[Mapping[str, Sequence[Any]]] = {
    "type_check_max_jitter": (0.0, 3.0),
    "activity_max_jitter": (0.0, 0.05, 86_400.0),
    "activity_batch_factor": (0.01, 0.5, 0.99),
    "activity_batch_increment": (0, 1, 100_000),
    "expiry_check_period": (0.2, 60.0),
    "retry_backoff": (0.001, 0.3, 2.0),
    "max_restarts": (0, 1, 1000),
    "restart_period": (0.1, 86_400.0),
}
"""What the processes of these runs draw of each, beside what it is in all others."""

_HALF: Final = 0.5
"""How likely each of them is drawn there."""

_PROCESSES_OF_MANY: Final = (1, 6, 8)
"""How many processes there are at least where there are many of everything."""

_WITH_CONSTANTS: Final = 0.04
"""The share of runs in which the constants below are drawn."""

_CONSTANTS: Final[Sequence[tuple[Any, str, Sequence[float]]]] = (
    (sampler, "_MOST_TYPES", (1, 2, 5)),
    (activity_monitor, "_LARGEST_BATCH", (1, 2)),
    (notifier, "_FIRST_BATCH", (1, 3)),
    (notifier, "_LARGEST_READ", (1, 500, 5_000)),
    (process_row, "_REMOVED_AT_ONCE", (1, 2)),
    (process_row, "_CLEAN_EVERY", (1.0, 5.0)),
    (process_rows, "_PAGE", (1, 2)),
    (worker_pool, "_MOST_ACCEPTED", (1, 2)),
    (run_endings, "_MOST_BYTES", (1, 1_000)),
    (run_endings, "_MOST_REWRITTEN", (1, 2)),
    (group_commit, "_MOST_BYTES", (1, 2_000)),
    (group_commit, "_READ_TOGETHER", (1, 3)),
    (listing, "FIRST_CHUNK", (1, 2)),
    (paging, "_MOST_ROWS", (3, 10)),
    (paging, "_MOST_BYTES", (1, 1_000)),
    (last_records, "_LARGEST_READ", (1, 500)),
    (writer, "_MAX_BATCH", (1, 2, 3)),
    (writer, "_MAX_BATCH_BYTES", (1, 1_000)),
    (watches, "_CHUNK", (1, 2, 7)),
    (fdb_watches, "_MOST_POLLED", (1, 2)),
)
"""How much is done or read at once, module by module, and what these runs draw of it."""


_USUAL: Final = [(module, name, getattr(module, name)) for module, name, _ in _CONSTANTS]
"""What each of them is in all others."""


def rarely_set(choices: Choices, settings: Sequence[Settings], *, has_many: bool) -> list[Settings]:
    """Return the settings of a run's processes; in a few runs with some that are the same in all others.

    Args:
        choices: of the run.
        settings: that were drawn for them.
        has_many: whether there are many of everything: then there are mostly more processes, too.
    """
    if has_many:
        wanted = choices.stream("many processes").choice(_PROCESSES_OF_MANY)
        settings = [*settings, *([settings[0]] * (wanted - len(settings)))]
    random = choices.stream("rare settings")
    if random.random() >= _WITH_SETTINGS:
        return [*settings]
    return [each.model_copy(update=_some_settings(random)) for each in settings]


def _some_settings(random: Random) -> dict[str, Any]:
    return {name: random.choice(values) for name, values in _SETTINGS.items() if random.random() < _HALF}


@contextmanager
def drawn_constants(choices: Choices, *, drilled: bool = False) -> Iterator[None]:
    """Have the constants of the service be what a run draws of them, each kind from its own stream, until left.

    Args:
        choices: of the run.
        drilled: whether nothing but drills are done in it.
    """
    kinds = {
        "pages": small_pages,
        "made up": few_made_up,
        "few": few_subscribed,
        "unread": soon_unread,
        "few at once": few_at_once,
    }
    with files_without_directories(), ExitStack() as stack:
        for stream, kind in kinds.items():
            stack.enter_context(kind(choices.stream(stream)))
        if drilled:
            stack.enter_context(of_drills(choices.stream("constants of drills")))
            long = choices.stream("long runs of drills").choice([4.0, heartbeat.LONG_RUN])
            stack.enter_context(patch.object(heartbeat, "LONG_RUN", long))
        yield


@contextmanager
def of_drills(random: Random) -> Iterator[None]:
    """Have both ways of following jobs, and counts of several pages, be as likely as not, until left."""
    few, page = random.choice([0, 1, notifier._FEW, 8, 8]), random.choice([2, 3, 7, None, None, None])
    unread, rows = random.choice([3.0, 60.0]), random.choice([2, 5, paging._MOST_ROWS])
    punctual = random.choice([4.0, schedule.PUNCTUAL])
    with ExitStack() as stack:
        stack.enter_context(patch.object(notifier, "_FEW", few))
        stack.enter_context(patch.object(paging, "_MOST_ROWS", rows))
        stack.enter_context(patch.object(activity_monitor, "_UNREAD_FOR", unread))
        stack.enter_context(patch.object(schedule, "PUNCTUAL", punctual))
        for module in (queries, transaction) if page is not None else ():
            stack.enter_context(patch.object(module, "COUNT_PAGE", page))
        yield


def few_at_once_are_drawn() -> bool:
    """Whether less is done or read at once than in most runs just now: then fewer jobs may be taken than are there."""
    return any(getattr(module, name) != usual for module, name, usual in _USUAL if module is not paging)


@contextmanager
def few_at_once(random: Random) -> Iterator[None]:
    """In a few runs, have less be done or read at once than in all others, until left."""
    with ExitStack() as stack:
        if random.random() < _WITH_CONSTANTS:
            for module, name, values in _CONSTANTS:
                if random.random() < _HALF:
                    stack.enter_context(patch.object(module, name, random.choice(values)))
        yield
