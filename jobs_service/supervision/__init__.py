"""Supervision in the manner of Erlang/OTP: supervisors, restart strategies, actors with an inbox, links, monitors.

It knows nothing of jobs, and needs only asyncio.
"""

from jobs_service.supervision.actor import Actor, Down, Message
from jobs_service.supervision.child import ChildSpec, Restart
from jobs_service.supervision.dynamic import DynamicSupervisor
from jobs_service.supervision.errors import ActorStopped, Killed, UnknownMessage
from jobs_service.supervision.patient import PatientSupervisor
from jobs_service.supervision.process import Process
from jobs_service.supervision.root import run_tree
from jobs_service.supervision.supervising import Supervising
from jobs_service.supervision.supervisor import Strategy, Supervisor
from jobs_service.supervision.tree import Node

__all__ = [
    "Actor",
    "ActorStopped",
    "ChildSpec",
    "Down",
    "DynamicSupervisor",
    "Killed",
    "Message",
    "Node",
    "PatientSupervisor",
    "Process",
    "Restart",
    "Strategy",
    "Supervising",
    "Supervisor",
    "UnknownMessage",
    "run_tree",
]
