"""A simulated FoundationDB: one cluster, a connection to it for every simulated process.

It keeps the contract of a store, as tests/contract checks, and otherwise shows all behavior of FoundationDB:
transactions see an older state, reads and commits take their time, commits conflict for no reason, have an unknown
outcome, or happen after their time limit; answers come after the caller's time limit; watches fire late or without a
change, or are lost. Transaction functions run on the loop and may be suspended at every read.
"""

from __future__ import annotations

from jobs_service.testing.cluster.client import SimulatedStore
from jobs_service.testing.cluster.cluster import FAULTS, ClientError, Cluster, Handle, Observer, SimulatedTransaction

__all__ = ["FAULTS", "ClientError", "Cluster", "Handle", "Observer", "SimulatedStore", "SimulatedTransaction"]
