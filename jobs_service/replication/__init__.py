"""Replication between two databases that speak CouchDB's HTTP protocol, as a job."""

from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.options import InvalidReplication, ReplicationOptions
from jobs_service.replication.stored import (
    register_replication,
    replicate,
    replicate_database,
    replicate_document,
    replications,
)

__all__ = [
    "InvalidReplication",
    "ReplicationError",
    "ReplicationOptions",
    "register_replication",
    "replicate",
    "replicate_database",
    "replicate_document",
    "replications",
]
