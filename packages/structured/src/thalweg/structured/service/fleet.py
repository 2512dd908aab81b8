"""The workers of a service as its dispatcher sees them: idle ones, what they report, and which ended."""

from __future__ import annotations

import dataclasses
import selectors
import signal
import time

from thalweg.structured.service.events import Collapsed, Done, Event, Lost
from thalweg.structured.service.jobs import Job
from thalweg.structured.service.processes import WorkerHandle, ZygoteHandle
from thalweg.structured.service.wire import Message

KILL_TIMEOUT_S = 5.0
"""A zygote that has not confirmed the end of a killed worker by then hangs."""
FORK_AGAIN_AFTER_S = 0.5


class Fleet:
    """A zygote and the workers forked from it, for use by one thread; their sockets are in its selector."""

    def __init__(self, num_workers: int, selector: selectors.BaseSelector) -> None:
        self._num_workers = num_workers
        self._selector = selector
        self._zygote: ZygoteHandle | None = None
        self._workers: list[WorkerHandle] = []
        self._ending: dict[int, WorkerHandle] = {}
        """By number; the zygote has not confirmed their end."""
        self._events: list[Event] = []
        self._no_fork_before = 0.0
        self.num_replaced = 0
        self.problem = ""
        """Why no worker can be started, if that is so."""

    @property
    def has_zygote(self) -> bool:
        """Whether one is starting or running."""
        return self._zygote is not None

    @property
    def is_ready(self) -> bool:
        """Whether workers can be forked."""
        return self._zygote is not None and self._zygote.is_ready

    @property
    def zygote_pid(self) -> int | None:
        """Of the process, if there is one."""
        return None if self._zygote is None else self._zygote.pid

    @property
    def running(self) -> list[WorkerHandle]:
        """Workers with a job."""
        return [worker for worker in self._workers if worker.job is not None]

    @property
    def idle(self) -> WorkerHandle | None:
        """A worker that can be given a job."""
        return next((worker for worker in self._workers if worker.is_ready and worker.job is None), None)

    def take_events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def adopt(self, zygote: ZygoteHandle) -> None:
        """Take over a process that was started."""
        self._zygote = zygote
        self._selector.register(zygote.channel, selectors.EVENT_READ, zygote)

    def start(self, worker: WorkerHandle, job: Job, cpu_s: float) -> None:
        """Give an idle worker a job."""
        worker.job = job
        head = {"spec": dataclasses.asdict(job.spec), "cpu_s": cpu_s}
        try:
            worker.channel.post(Message(head))
        except ConnectionError:
            self._part(worker)
        else:
            self._watch(worker)

    def stop(self, worker: WorkerHandle) -> None:
        """Kill a worker, whose job is the caller's from now on, and start another."""
        worker.job = None
        self._part(worker)

    def refill(self, now: float) -> None:
        """Fork workers until there are as many as there should be."""
        if self._zygote is None or not self.is_ready or now < self._no_fork_before:
            return
        try:
            while len(self._workers) < self._num_workers:
                worker = self._zygote.fork()
                self._workers.append(worker)
                self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        except ConnectionError:
            self._collapse("")
        except OSError as error:
            self._no_fork_before = now + FORK_AGAIN_AFTER_S
            self.problem = f"no worker can be started: {error}"

    def next_look(self) -> float | None:
        """When `look` has something to do, at the latest."""
        times = [worker.killed_at + KILL_TIMEOUT_S for worker in self._ending.values()]
        if self.is_ready and len(self._workers) < self._num_workers:
            times.append(self._no_fork_before)
        return min(times, default=None)

    def look(self, now: float) -> None:
        """Give up on a zygote that hangs."""
        if any(now >= worker.killed_at + KILL_TIMEOUT_S for worker in self._ending.values()):
            self._collapse(f"it did not end a worker within {KILL_TIMEOUT_S:g} s", patience_s=0)

    def handle(self, source: ZygoteHandle | WorkerHandle, mask: int) -> None:
        """React to a socket that is ready; source: as registered."""
        if isinstance(source, ZygoteHandle):
            if source is self._zygote:
                self._hear_zygote(source)
        elif source in self._workers:
            self._hear_worker(source, mask)

    def _hear_zygote(self, zygote: ZygoteHandle) -> None:
        try:
            for message in zygote.channel.read():
                if message.head["event"] == "ready":
                    zygote.is_ready = True
                elif message.head["event"] == "failed":
                    self._collapse(message.head["error"])
                    return
                else:
                    self._bury(message)
        except ConnectionError:
            self._collapse("")

    def _bury(self, message: Message) -> None:
        """The zygote says that a worker is gone, and why."""
        number, status, error = (message.head[name] for name in ("worker", "status", "error"))
        for worker in [worker for worker in self._workers if worker.number == number]:
            for last in worker.channel.read_rest():
                self._note(worker, last)
            if worker in self._workers:
                self._part(worker, kill=False)
        dead = self._ending.pop(number, None)
        if dead is None:
            return
        if not dead.is_ready:
            self.problem = f"no worker can be started: {error or describe(status)}"
        if dead.job is not None:
            self._events.append(Lost(dead.job, describe(status), status == -signal.SIGXCPU))

    def _hear_worker(self, worker: WorkerHandle, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                worker.channel.flush()
                self._watch(worker)
            messages = worker.channel.read() if mask & selectors.EVENT_READ else []
        except ConnectionError:
            self._part(worker)
            return
        for message in messages:
            self._note(worker, message)

    def _note(self, worker: WorkerHandle, message: Message) -> None:
        """What a worker says: that it runs, or the result of its job."""
        event = message.head["event"]
        if event == "hello":
            worker.pid, self.problem = message.head["pid"], ""
        elif event == "result":
            job, worker.job = worker.job, None
            if message.head["retires"]:
                self._part(worker)
            if job is not None:
                self._events.append(Done(job, message))

    def _watch(self, worker: WorkerHandle) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.channel.has_unsent else 0)
        self._selector.modify(worker.channel, events, worker)

    def _part(self, worker: WorkerHandle, *, kill: bool = True) -> None:
        """Let go of a worker, and ask for another at once. If it has a job, its end is told when it is confirmed."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        worker.channel.close()
        self.num_replaced += 1
        worker.killed_at = time.monotonic()
        self._ending[worker.number] = worker
        if not worker.is_ready:
            self._no_fork_before = worker.killed_at + FORK_AGAIN_AFTER_S
        if self._zygote is None:
            return
        try:
            if kill:
                self._zygote.kill(worker)
        except ConnectionError:
            self._collapse("")
        else:
            self.refill(worker.killed_at)

    def _collapse(self, reason: str, patience_s: float = 1.0) -> None:
        """End the zygote and all workers."""
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return
        self._selector.unregister(zygote.channel)
        for worker in self._workers:
            self._selector.unregister(worker.channel)
            worker.channel.close()
        status = zygote.end(patience_s)
        workers = [*self._workers, *self._ending.values()]
        self.num_replaced += len(self._workers) if zygote.is_ready else 0
        self._workers.clear()
        self._ending.clear()
        jobs = [worker.job for worker in workers if worker.job is not None]
        self._events.append(Collapsed(jobs, reason or describe(status)))

    def close(self, reason: str) -> None:
        """End everything, and wait until it has ended."""
        self._collapse(reason, patience_s=5.0)


def describe(status: int | None) -> str:
    """An exit status in words."""
    if status is None or status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"it was ended by signal {name}"
