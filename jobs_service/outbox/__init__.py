"""Jobs of an application whose rows are in a database of its own, PostgreSQL or SQLite: exactly once in both ways.

`enqueue` adds a job in the application's own transaction, as a row that a relay moves into the store; `once` notes a
job's effect beside the effect. docs/your-data.md has the guarantees.
"""

from jobs_service.outbox.effects import once
from jobs_service.outbox.relays import relay
from jobs_service.outbox.rows import enqueue
from jobs_service.outbox.tables import schema

__all__ = ["enqueue", "once", "relay", "schema"]
