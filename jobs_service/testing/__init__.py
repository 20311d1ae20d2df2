"""A deterministic world for tests: virtual time, simulated processes and a simulated cluster, all from one seed.

docs/testing.md explains its use, and how to test your own workers in it.
"""

from jobs_service.testing.cluster import FAULTS, Cluster, Observer, SimulatedStore, SimulatedTransaction
from jobs_service.testing.loop import Choices, Deadlock, Livelock, Plan, SimulatedLoop
from jobs_service.testing.world import EPOCH, Clock, Process, World

__all__ = [
    "EPOCH",
    "FAULTS",
    "Choices",
    "Clock",
    "Cluster",
    "Deadlock",
    "Livelock",
    "Observer",
    "Plan",
    "Process",
    "SimulatedLoop",
    "SimulatedStore",
    "SimulatedTransaction",
    "World",
]
