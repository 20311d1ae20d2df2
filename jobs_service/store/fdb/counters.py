"""Counters of a cluster's transactions and watches, for dashboards and for diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

from jobs_service.store.counters import Counters


@dataclass(slots=True)
class ClusterCounters(Counters):
    """Counts since the store was opened, beside the counts of every store.

    Attributes:
        unknown_commits: commits without an outcome from the cluster, so that the store looked for their marks.
        unknown_commits_happened: number of these commits that had happened.
        watches_lost: watches that the client gave up; their waiters read again, after a pause.
        directory_lookups: number of look-ups of the directory.
    """

    unknown_commits: int = 0
    unknown_commits_happened: int = 0
    watches_lost: int = 0
    directory_lookups: int = 0
