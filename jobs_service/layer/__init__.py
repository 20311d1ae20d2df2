"""Jobs as keys and values: coroutines that await only their transaction.

Operations of creators (add, enqueue, resubmit, remove) are in `creation`, those of a job's worker in `running_jobs`,
accepts in `queue`, those on types in `type_settings`. `UnitOfWork.flush` in `unit_of_work` writes the keys.
"""
