"""What a store on a cluster counts of its transactions and watches: for dashboards, and for whoever looks for a cause.

Floor: store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the store was opened.

    Attributes:
        transactions: runs of transaction functions that were begun.
        commits: those that wrote something, and took effect.
        retries: runs that were another attempt.
        conflicts: commits that failed because others had written what they had read.
        unknown_commits: commits of which the cluster did not say whether they happened, so that it was found out.
        unknown_commits_happened: those of them that had.
        watches_lost: watches that the client gave up; whoever waits looks again, after a pause.
        directory_lookups: how often the directory was looked for.
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
