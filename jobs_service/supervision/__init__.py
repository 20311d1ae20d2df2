"""Supervision in the manner of Erlang/OTP: supervisors, restart strategies, actors with an inbox, links, monitors.

It knows nothing of jobs, and needs only asyncio.
"""

from jobs_service.supervision.process import Actor, ActorStopped, Down, Killed, Node, SupervisedProcess, UnknownMessage
from jobs_service.supervision.supervisor import (
    ChildSpec,
    DynamicSupervisor,
    PatientSupervisor,
    Strategy,
    Supervising,
    Supervisor,
    run_tree,
)

__all__ = [
    "Actor",
    "ActorStopped",
    "ChildSpec",
    "Down",
    "DynamicSupervisor",
    "Killed",
    "Node",
    "PatientSupervisor",
    "Strategy",
    "SupervisedProcess",
    "Supervising",
    "Supervisor",
    "UnknownMessage",
    "run_tree",
]
