"""Counters of a cluster's transactions and watches, for dashboards and for finding the cause of trouble."""

from __future__ import annotations

from dataclasses import dataclass

from jobs_service.store.counters import Counters


@dataclass(slots=True)
class ClusterCounters(Counters):
    """Counts since the store was opened, beside those of every store.

    Attributes:
        unknown_commits: commits whose outcome the cluster did not say, so that the store looked for their marks.
        unknown_commits_happened: how many of these had happened.
        watches_lost: watches that the client gave up; their waiters read again, after a pause.
        directory_lookups: how often the store looked up its directory.
    """

    unknown_commits: int = 0
    unknown_commits_happened: int = 0
    watches_lost: int = 0
    directory_lookups: int = 0
