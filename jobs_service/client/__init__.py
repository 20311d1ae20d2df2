"""A service in another process, over HTTP, with the methods of JobsService."""

from __future__ import annotations

from jobs_service.client.client import JobsClient as JobsClient
