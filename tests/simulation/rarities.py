"""What runs draw of settings and constants of the service, each kind from a random stream of its own."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from jobs_service import Settings, batching
from jobs_service.actors import activity_monitor, context, notifier, type_server
from jobs_service.layer import changes, creation, queue, reads, rows, transaction, type_settings
from jobs_service.runner import heartbeat, run, run_endings, schedule, worker_pool
from jobs_service.service import presence, queries
from jobs_service.store import embedded, sqlite
from jobs_service.store.fdb import watches as fdb_watches
from jobs_service.testing import Choices

_WITH_SETTINGS: Final = 0.04
"""The share of runs in which the settings below are drawn."""

_SETTINGS: Final[Mapping[str, Sequence[Any]]] = {
    "expiry_check_period": (0.2, 60.0),
    "retry_backoff": (0.001, 0.3, 2.0),
    "max_restarts": (0, 1, 1000),
    "restart_period": (0.1, 86_400.0),
}
"""What the processes of these runs draw of each, beside what it is in all others."""

_HALF: Final = 0.5
"""How likely each of them is drawn there."""

_DIRECTORIES: Final = re.compile(r'File "[^"]*/')
"""Of a file that a traceback names."""

_Constant = tuple[Any, str, Sequence[float]]

_FEW_KEYS: Final = (2, 3, 7)

_PAGES: Final[Sequence[_Constant]] = (
    (queue, "PAGE", _FEW_KEYS),
    (context, "_TYPES_PAGE", _FEW_KEYS),
    (notifier, "_CHANGES_PAGE", _FEW_KEYS),
    (batching, "_MOST_OPERATIONS", _FEW_KEYS),
    (batching, "_MOST_JOBS", _FEW_KEYS),
    (creation, "_LOOKED_AT", _FEW_KEYS),
    (reads, "LARGEST_CHUNK", _FEW_KEYS),
    (transaction, "COUNT_PAGE", _FEW_KEYS),
    (activity_monitor, "_PAGE", _FEW_KEYS),
    (type_settings, "_TYPES_PAGE", _FEW_KEYS),
    (type_server, "_SCANNED_TOGETHER", _FEW_KEYS),
    (type_server, "_SETTLED_TOGETHER", _FEW_KEYS),
    (queries, "COUNT_PAGE", _FEW_KEYS),
)
"""How much is read at once: pages hold a few keys, so that the second one is read as well."""

_CONSTANTS: Final[Sequence[_Constant]] = (
    (activity_monitor, "_MOST_TYPES", (1, 2, 5)),
    (activity_monitor, "_MOST_JITTER", (0.0, 0.05)),
    (activity_monitor, "_LARGEST_BATCH", (1, 2)),
    (notifier, "_FIRST_BATCH", (1, 3)),
    (notifier, "_LARGEST_READ", (1, 500, 5_000)),
    (presence, "_REMOVED_AT_ONCE", (1, 2)),
    (presence, "_CLEAN_EVERY", (1.0, 5.0)),
    (rows, "_PAGE", (1, 2)),
    (worker_pool, "_MOST_ACCEPTED", (1, 2)),
    (run_endings, "_MOST_BYTES", (1, 1_000)),
    (run_endings, "_MOST_REWRITTEN", (1, 2)),
    (batching, "_MOST_BYTES", (1, 2_000)),
    (batching, "_READ_TOGETHER", (1, 3)),
    (reads, "FIRST_CHUNK", (1, 2)),
    (reads, "MOST_ROWS", (3, 10)),
    (reads, "MOST_BYTES", (1, 1_000)),
    (changes, "_LARGEST_READ", (1, 500)),
    (embedded, "_MAX_BATCH", (1, 2, 3)),
    (embedded, "_MAX_BATCH_BYTES", (1, 1_000)),
    (embedded, "_CHUNK", (1, 2, 7)),
    (fdb_watches, "_MOST_POLLED", (1, 2)),
    (sqlite, "_FIRST_CHUNK", (1, 2)),
)
"""How much is done or read at once, beside."""


class _Kind(NamedTuple):
    """Constants that are drawn together.

    Attributes:
        stream: from which they are drawn.
        share: of the runs in which they are drawn.
        each: how likely each of them is drawn there; else it is what it always is.
        constants: module, name, and the values of which one is drawn.
    """

    stream: str
    share: float
    each: float
    constants: Sequence[_Constant]


_KINDS: Final = (
    _Kind("pages", 0.3, 1.0, _PAGES),
    _Kind("made up", 0.7, 1.0, ((schedule, "MOST_MADE_UP", (2, 5)),)),
    # In most runs notifiers read what has changed instead of all that is subscribed to, and it is removed soon.
    _Kind("few", 0.8, 1.0, ((notifier, "_FEW", (0, 0, 1, 20)),)),
    _Kind("unread", 0.85, 1.0, ((activity_monitor, "_UNREAD_FOR", (3.0,)),)),
    _Kind("few at once", 0.04, _HALF, _CONSTANTS),
)
_OF_DRILLS: Final = _Kind(
    "drills",
    1.0,
    _HALF,
    (
        (reads, "MOST_ROWS", (2, 5)),
        (schedule, "PUNCTUAL", (4.0,)),
        (heartbeat, "LONG_RUN", (4.0,)),
        (transaction, "COUNT_PAGE", _FEW_KEYS),
        (queries, "COUNT_PAGE", _FEW_KEYS),
    ),
)
"""What is drawn beside in runs in which nothing but drills are done."""

_USUAL: Final = [(module, name, getattr(module, name)) for module, name, _ in _CONSTANTS]
"""What each of them is in all others."""


def rarely_set(choices: Choices, settings: Sequence[Settings]) -> list[Settings]:
    """Return the settings of a run's processes; in a few runs with some that are the same in all others.

    Args:
        choices: of the run.
        settings: that were drawn for them.
    """
    random = choices.stream("rare settings")
    if random.random() >= _WITH_SETTINGS:
        return [*settings]
    return [each.model_copy(update=_some_settings(random)) for each in settings]


def _some_settings(random: Random) -> dict[str, Any]:
    return {name: random.choice(values) for name, values in _SETTINGS.items() if random.random() < _HALF}


@contextmanager
def drawn_constants(choices: Choices, *, drilled: bool = False) -> Iterator[None]:
    """Have the constants of the service be what a run draws of them, until left.

    Args:
        choices: of the run.
        drilled: whether nothing but drills are done in it.
    """
    lines = run._lines

    def shortened(shown: traceback.TracebackException) -> Iterator[str]:
        return (_DIRECTORIES.sub('File "', line) for line in lines(shown))

    with ExitStack() as stack:
        # Tracebacks name files alone: so records are as large wherever the repository and Python are.
        stack.enter_context(patch.object(run, "_lines", shortened))
        for kind in (*_KINDS, _OF_DRILLS) if drilled else _KINDS:
            random = choices.stream(kind.stream)
            for module, name, values in kind.constants if random.random() < kind.share else ():
                if random.random() < kind.each:
                    stack.enter_context(patch.object(module, name, random.choice(values)))
        yield


def pages_are_small() -> bool:
    """Whether pages hold a few keys only just now: then a transaction may take fewer jobs than are there."""
    return max(_FEW_KEYS) >= queue.PAGE


def few_at_once_are_drawn() -> bool:
    """Whether less is done or read at once than in most runs just now: then fewer jobs may be taken than are there."""
    return any(getattr(module, name) != usual for module, name, usual in _USUAL if module is not reads)
