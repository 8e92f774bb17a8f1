"""Jobs that a test holds as an agent does, for longer than any test takes."""

from __future__ import annotations

from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.values import Question, Wants

LEASE_S = 10**9


def hold(queue: JobQueue) -> Lease:
    """The next job of the queue, begun."""
    job = queue.claim("a", FreeDevices(hostname="here"), lease_s=LEASE_S)
    assert job is not None
    lease = Lease(queue=queue, job_id=job.job_id, fence=job.fence, seconds=float(LEASE_S))
    lease.run_started()
    return lease


def running(queue: JobQueue, experiment: str = "train") -> Lease:
    """A new job that needs no device, begun."""
    queue.submit([Question(names=(experiment,))], [Wants(device="none")])
    return hold(queue)
