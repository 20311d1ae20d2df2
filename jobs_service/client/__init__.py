"""The HTTP client: a service in another process, with the methods of JobsService."""

from __future__ import annotations

from jobs_service.client.client import JobsClient as JobsClient
