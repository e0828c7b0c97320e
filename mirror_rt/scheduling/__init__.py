"""Let concurrent callers share a device: see `Scheduler`."""

from mirror_rt.scheduling.requests import BatchReport, RequestTimes, SchedulerStatistics
from mirror_rt.scheduling.scheduler import Scheduler
from mirror_rt.scheduling.turns import Turns

__all__ = ["BatchReport", "RequestTimes", "Scheduler", "SchedulerStatistics", "Turns"]
