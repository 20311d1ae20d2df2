"""A script: adds jobs, runs them in this process until all have ended, and prints the results.

python script.py 3 4 5
"""

import sys
import threading

from jobs_service.sync import JobsService

jobs = JobsService("lmdb:jobs-data")


@jobs.handler("square", slots=4)
def square(number: int) -> int:
    return number * number


def main() -> None:
    added = jobs.enqueue_many(square, [int(number) for number in sys.argv[1:]])
    threading.Thread(target=jobs.run, daemon=True).start()  # or, in another terminal: jobs-service serve script:jobs
    for job in added:
        print(job.data, jobs.result(square, job.id, timeout=60))


if __name__ == "__main__":
    main()
