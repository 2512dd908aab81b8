"""Who waits for which grammar: the state of the compile service, without its processes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import fields
from typing import TYPE_CHECKING

from thalweg.interfaces import GrammarCounts, GrammarSpec, Matcher, RequestError, shown
from thalweg.structured.service.cache import ByteCache
from thalweg.structured.service.fair_queue import FairQueue
from thalweg.structured.service.jobs import Job, JobState, Outcome, Waiter, key_of
from thalweg.structured.service.limits import ServiceLimits

if TYPE_CHECKING:
    from thalweg.structured.library import CompiledGrammar

_COUNTED = frozenset(field.name for field in fields(GrammarCounts)) - {"cache_bytes", "compile_s"}


class JobBook:
    """Jobs, their waiters and what was compiled; every method may be called by any thread.

    A waiter is decided exactly once, by whichever comes first of its result, its deadline, its cancellation and the end
    of the service, and counted then. Those that come while the service starts get their deadlines when it is ready.
    Times are of the monotonic clock.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._queue: FairQueue[Job] = FairQueue()
        self._in_flight: dict[GrammarSpec, Job] = {}
        self._waiters: OrderedDict[Future[Matcher], Waiter] = OrderedDict()
        """Not decided; in the order of their deadlines, because all have the same time, and those without come last."""
        self._cache: ByteCache[GrammarSpec, CompiledGrammar] = ByteCache(limits.cache_bytes)
        self._totals: Counter[str] = Counter()
        self._compile_s = 0.0
        self._is_ready = False
        self._is_closed = False

    @property
    def counts(self) -> GrammarCounts:
        """Totals so far."""
        with self._lock:
            totals = {name: self._totals[name] for name in _COUNTED}
            return GrammarCounts(**totals, compile_s=self._compile_s, cache_bytes=self._cache.total_bytes)

    def find(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """The grammar if it is kept, which serves one request."""
        with self._lock:
            self._check_open()
            compiled = self._cache.get(key_of(spec))
            if compiled is not None:
                self._totals["num_submitted"] += 1
                self._totals["num_cache_hits"] += 1
            return compiled

    def is_in_flight(self, spec: GrammarSpec) -> bool:
        """Whether somebody waits for this grammar already."""
        with self._lock:
            return key_of(spec) in self._in_flight

    def submit(self, spec: GrammarSpec, user: str, now: float) -> Future[Matcher]:
        """Wait for a grammar, with whoever waits for it already.

        Raises RequestError if too much of this user waits, or the service is closed.
        """
        key = key_of(spec)
        with self._lock:
            self._check_open()
            job = self._in_flight.get(key)
            if job is None or job in self._queue:
                self._check_waiting(job, user)
            if job is None:
                job = self._in_flight[key] = Job(key)
            if job.state is JobState.QUEUED:
                self._queue.push(job, user)
            deadline = now + self._limits.timeout_s if self._is_ready else None
            waiter = Waiter(Future(), spec, user, job, now, deadline)
            job.waiters[waiter] = None
            job.users[user] += 1
            self._waiters[waiter.future] = waiter
            self._totals["num_submitted"] += 1
            return waiter.future

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("closed: the compile service was closed")

    def _check_waiting(self, job: Job | None, user: str) -> None:
        if job is not None and user in self._queue.users_of(job):
            return
        most = self._limits.max_pending_per_user
        if self._queue.num_waiting(user) >= most:
            raise RequestError(
                f"{most} grammars of user {shown(user)} are waiting to be compiled, which is max_pending_per_user"
            )

    def set_ready(self, now: float) -> None:
        """The service has started: whoever waited for that has the whole time from now on."""
        with self._lock:
            self._is_ready = True
            for waiter in self._waiters.values():
                if waiter.deadline is None:
                    waiter.deadline = now + self._limits.timeout_s

    def set_down(self) -> None:
        """The service has to start again, which is not on the time of whoever comes meanwhile."""
        with self._lock:
            self._is_ready = False

    @property
    def has_queued(self) -> bool:
        """Whether a job waits for a worker."""
        with self._lock:
            return len(self._queue) > 0

    def has_waiting_besides(self, users: Collection[str]) -> bool:
        """Whether somebody else waits for a worker."""
        with self._lock:
            return self._queue.has_waiting_besides(users)

    def next_deadline(self) -> float | None:
        """When the next waiter has waited for too long; None if no time runs."""
        with self._lock:
            return next(iter(self._waiters.values())).deadline if self._waiters else None

    def start_next(self, now: float, served: Collection[str] = ()) -> Job | None:
        """The job that is next, which is running now; None if nothing waits. served: users who have a worker."""
        with self._lock:
            job = self._queue.pop(served)
            if job is not None:
                job.state, job.started_at = JobState.RUNNING, now
                job.num_starts += 1
            return job

    def requeue(self, job: Job) -> None:
        """Let a job whose worker was taken away wait again, before others of the same users."""
        with self._lock:
            if job.waiters:
                job.state = JobState.QUEUED
                for user in job.users:
                    self._queue.push(job, user, first=True)

    def set_finishing(self, job: Job) -> None:
        """The worker is done with this job."""
        with self._lock:
            job.state = JobState.FINISHING

    def users_of(self, job: Job) -> frozenset[str]:
        """Who waits for a job."""
        with self._lock:
            return frozenset(job.users)

    def finish(self, job: Job, compiled: CompiledGrammar, now: float) -> tuple[list[Outcome], list[CompiledGrammar]]:
        """The job is done: decide its waiters and keep the grammar. The second list is what the cache let go of."""
        num_bytes = compiled.memory_size_bytes + len(job.spec.source)
        with self._lock:
            gone = [] if self._is_closed else self._cache.put(job.spec, compiled, num_bytes)
            self._compile_s += sum(now - waiter.submitted_at for waiter in job.waiters)
            return self._decide(job, job.waiters, "num_compiled"), gone

    def fail(self, job: Job, error: str, *, is_timeout: bool = False) -> list[Outcome]:
        """The job cannot be done; nobody waits for it any more."""
        with self._lock:
            return self._decide(job, job.waiters, "num_failed", error, is_timeout)

    def fail_start(self, error: str) -> list[Outcome]:
        """The service does not start: who waits for that, or for a worker, will get nothing."""
        outcomes: list[Outcome] = []
        with self._lock:
            for waiter in list(self._waiters.values()):
                if waiter.deadline is None or waiter.job.state is JobState.QUEUED:
                    outcomes += self._decide(waiter.job, [waiter], "num_failed", error)
        return outcomes

    def expire(self, now: float, problem: str = "") -> list[Outcome]:
        """Decide the waiters whose time is over. Jobs without waiters are `is_abandoned`.

        problem: why there is no worker, if there is a reason.
        """
        outcomes: list[Outcome] = []
        with self._lock:
            while self._waiters:
                waiter = next(iter(self._waiters.values()))
                if waiter.deadline is None or waiter.deadline > now:
                    break
                error = self._timeout_text(waiter, now, problem)
                outcomes += self._decide(waiter.job, [waiter], "num_failed", error, is_timeout=True)
        return outcomes

    def _timeout_text(self, waiter: Waiter, now: float, problem: str) -> str:
        job, timeout_s = waiter.job, self._limits.timeout_s
        where = "it waited for a worker" + (f"; {problem}" if problem else "")
        if job.state is JobState.RUNNING:
            where = f"a worker compiled it for {now - job.started_at:.1f} s"
        elif job.state is JobState.FINISHING:
            where = "a worker had compiled it, and it was not yet made in this process"
        is_early = waiter.deadline != waiter.submitted_at + timeout_s
        since = "the start of the compile service" if is_early else "its submission"
        return f"timeout: no grammar within timeout_s {timeout_s:g} of {since}; {where}"

    def leave(self, future: Future[Matcher]) -> bool:
        """Nobody waits for this future any more; False if its result was decided before."""
        with self._lock:
            waiter = self._waiters.get(future)
            if waiter is None:
                return False
            self._decide(waiter.job, [waiter], "num_cancelled")
            return True

    def is_abandoned(self, job: Job) -> bool:
        """Whether nobody waits for this job."""
        with self._lock:
            return not job.waiters

    def close(self) -> list[Outcome]:
        """Take nothing more, forget the grammars, and decide everybody who waits."""
        with self._lock:
            self._is_closed = True
            self._cache.clear()
            outcomes: list[Outcome] = []
            for waiter in list(self._waiters.values()):
                error = "closed: the compile service was closed before the grammar was compiled"
                outcomes += self._decide(waiter.job, [waiter], "num_failed", error)
            return outcomes

    def _decide(
        self, job: Job, waiters: Iterable[Waiter], total: str, error: str = "", is_timeout: bool = False
    ) -> list[Outcome]:
        """Settle some of a job's waiters; a job without any is forgotten, and joined by nobody."""
        outcomes = []
        for waiter in tuple(waiters):
            del self._waiters[waiter.future]
            del job.waiters[waiter]
            job.users[waiter.user] -= 1
            if not job.users[waiter.user]:
                del job.users[waiter.user]
                self._queue.leave(job, waiter.user)
            self._totals[total] += 1
            self._totals["num_timeouts"] += is_timeout
            outcomes.append(Outcome(waiter, error))
        if not job.waiters and self._in_flight.get(job.spec) is job:
            del self._in_flight[job.spec]
        return outcomes
