"""Jobs and events as applications see them: frozen records, and the enumerations in them."""

from __future__ import annotations

from jobs_service.model.job import UNSET as UNSET
from jobs_service.model.job import EndedJob as EndedJob
from jobs_service.model.job import Ending as Ending
from jobs_service.model.job import Enqueued as Enqueued
from jobs_service.model.job import Job as Job
from jobs_service.model.job import JobEvent as JobEvent
from jobs_service.model.job import JobId as JobId
from jobs_service.model.job import JobRecord as JobRecord
from jobs_service.model.job import JobState as JobState
from jobs_service.model.job import JobType as JobType
from jobs_service.model.job import NewJob as NewJob
from jobs_service.model.job import Outcome as Outcome
from jobs_service.model.job import Priority as Priority
from jobs_service.model.job import ProgressReport as ProgressReport
from jobs_service.model.job import Removal as Removal
from jobs_service.model.job import ResubmitFlag as ResubmitFlag
from jobs_service.model.job import RunAt as RunAt
from jobs_service.model.job import RunningJob as RunningJob
from jobs_service.model.job import Unset as Unset
from jobs_service.model.job import Worker as Worker
from jobs_service.model.job import next_run as next_run
from jobs_service.model.job import unpack_priority as unpack_priority
from jobs_service.model.process import HandlerSlots as HandlerSlots
from jobs_service.model.process import ProcessAction as ProcessAction
from jobs_service.model.process import ProcessInfo as ProcessInfo
from jobs_service.model.process import ProcessRequest as ProcessRequest
from jobs_service.model.process import ProcessState as ProcessState
from jobs_service.model.type_state import Histogram as Histogram
from jobs_service.model.type_state import Interval as Interval
from jobs_service.model.type_state import JobsPage as JobsPage
from jobs_service.model.type_state import Totals as Totals
from jobs_service.model.type_state import TypeCounts as TypeCounts
from jobs_service.run_data import HistoryEvent as HistoryEvent
from jobs_service.run_data import HistoryKind as HistoryKind
from jobs_service.run_data import JobError as JobError
from jobs_service.run_data import Progress as Progress
