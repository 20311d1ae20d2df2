"""Counters of a cluster's transactions and watches, for dashboards and for finding the cause of trouble."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the store was opened.

    Attributes:
        transactions: runs of transaction functions that were begun.
        commits: transactions that wrote something, and took effect.
        retries: runs that repeated an earlier one.
        conflicts: commits that failed because others had written what they had read.
        unknown_commits: commits whose outcome the cluster did not say, so that the store looked for their marks.
        unknown_commits_happened: how many of these had happened.
        watches_lost: watches that the client gave up; their waiters read again, after a pause.
        directory_lookups: how often the store looked up its directory.
    """

    transactions: int = 0
    commits: int = 0
    retries: int = 0
    conflicts: int = 0
    unknown_commits: int = 0
    unknown_commits_happened: int = 0
    watches_lost: int = 0
    directory_lookups: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)
