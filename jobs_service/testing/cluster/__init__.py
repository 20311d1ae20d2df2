"""A simulated FoundationDB: one cluster, a connection to it for every simulated process.

It promises what tests/contract asks of a store, and takes every liberty that FoundationDB has beside: transactions that
see a state from before they were asked for, reads and commits that take their time, conflicts for no reason, commits of
which nobody knows whether they happened, commits that happen after their caller was told that its time is up, answers
that come after the caller's time is up, watches that fire late, for nothing, or are lost. Transaction functions run on
the loop and may be suspended at every read.
"""

from __future__ import annotations

from jobs_service.testing.cluster.client import SimulatedStore
from jobs_service.testing.cluster.cluster import Cluster, Handle, Observer
from jobs_service.testing.cluster.faults import FAULTS, ClientError
from jobs_service.testing.cluster.transaction import SimulatedTransaction

__all__ = ["FAULTS", "ClientError", "Cluster", "Handle", "Observer", "SimulatedStore", "SimulatedTransaction"]
