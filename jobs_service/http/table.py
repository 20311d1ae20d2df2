"""All endpoints: importing the modules registers them, in the order of the documentation."""

from __future__ import annotations

from jobs_service.http import daemon_endpoints as daemon_endpoints
from jobs_service.http import documentation as documentation
from jobs_service.http import event_endpoints as event_endpoints
from jobs_service.http import job_endpoints as job_endpoints
from jobs_service.http import process_endpoints as process_endpoints
from jobs_service.http import runner_endpoints as runner_endpoints
from jobs_service.http import type_endpoints as type_endpoints
from jobs_service.http import worker_endpoints as worker_endpoints
from jobs_service.http.endpoint import ENDPOINTS as ENDPOINTS
