"""The thread that keeps workers busy and deadlines exact."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

from thalweg.structured.service.delivery import Delivery
from thalweg.structured.service.events import Collapsed, Done, Lost
from thalweg.structured.service.fleet import Fleet
from thalweg.structured.service.grammar_maker import GrammarMaker
from thalweg.structured.service.job_book import JobBook
from thalweg.structured.service.jobs import Job
from thalweg.structured.service.limits import ServiceLimits
from thalweg.structured.service.start import Start
from thalweg.structured.service.threads import start_thread
from thalweg.structured.service.wire import Message

logger = logging.getLogger(__name__)

QUICK_S = 0.5
"""A job that takes no longer is never stopped for others."""
_MOST_STARTS = 2


class Dispatcher:
    """Processes and threads of one service, from its first compilation to its end.

    The dispatcher thread alone touches the processes, and never waits for anything but them: whatever else takes time
    is left to the threads of `delivery`.
    """

    def __init__(self, book: JobBook, limits: ServiceLimits, maker: GrammarMaker) -> None:
        self._book = book
        self._limits = limits
        self._maker = maker
        self._start: Start | None = None
        """The one that is under way."""
        self._is_closing = False
        self._woken, self._wake_end = socket.socketpair()
        self._woken.setblocking(False)
        self._wake_end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self.fleet = Fleet(limits.num_workers, self._selector)
        self.delivery = Delivery(book, maker, limits.num_workers)
        self._thread = start_thread("thalweg-structured", self._run)

    def wake(self) -> None:
        """Have the thread look at the book now; callable by any thread."""
        with suppress(OSError):  # full, so it is awake already; or closed
            self._wake_end.send(b"\0")

    def close(self) -> None:
        """End processes and threads, and wait for that; callable by any thread, these included."""
        self._is_closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.delivery.close()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn(time.monotonic())
        except Exception:
            logger.exception("the compile service failed, and takes no more grammars")
        finally:
            self.delivery.fail(self._book.close())
            if self._start is not None:
                self._start.give_up()
            self.fleet.close("closed")
            self._selector.close()
            self._woken.close()
            self._wake_end.close()

    def _turn(self, now: float) -> None:
        self.delivery.fail(self._book.expire(now, self.fleet.problem))
        self._stop_overdue(now)
        self.fleet.look(now)
        self._react()  # a zygote that is gone is not the one that is started next
        self._get_ready(now)
        self.fleet.refill(now)
        if self._start is None:
            self._assign(now)
        room_at = self._make_room(now)
        wait_s = 0.0 if self._react() else self._wait_s(room_at)
        for key, mask in self._selector.select(wait_s):
            if key.data is None:
                self._woken.recv(4096)
            else:
                self.fleet.handle(key.data, mask)
        self._react()

    def _wait_s(self, room_at: float | None) -> float | None:
        """Seconds until something is to be done if nothing happens; None if nothing is."""
        times = [self._book.next_deadline(), self.fleet.next_look(), room_at]
        times += [self._start.deadline] if self._start is not None else []
        times += [worker.job.started_at + self._limits.timeout_s for worker in self.fleet.running if worker.job]
        soonest = min((at for at in times if at is not None), default=None)
        return None if soonest is None else max(0.0, soonest - time.monotonic())

    def _stop_overdue(self, now: float) -> None:
        """Kill workers whose job nobody waits for, or takes too long."""
        for worker in self.fleet.running:
            job = worker.job
            if job is None:
                continue
            if now >= job.started_at + self._limits.timeout_s:
                text = f"timeout: the grammar takes more than timeout_s {self._limits.timeout_s:g} to compile"
                self.delivery.fail(self._book.fail(job, text, is_timeout=True))
            if self._book.is_abandoned(job):
                self.fleet.stop(worker)

    def _assign(self, now: float) -> None:
        """Give idle workers what is next, to users who have none first."""
        while (worker := self.fleet.idle) is not None:
            job = self._book.start_next(now, self._served())
            if job is None:
                return
            self.fleet.start(worker, job, self._limits.timeout_s)

    def _served(self) -> Counter[str]:
        """How many workers each user has."""
        jobs = [worker.job for worker in self.fleet.running if worker.job]
        return Counter(user for job in jobs for user in self._book.users_of(job))

    def _make_room(self, now: float) -> float | None:
        """Take a worker from a user who has several for one who waits and has none.

        The youngest of its jobs waits again, once it has shown that it is not one of the quick ones. Returns when that
        will be, if it is to come.
        """
        running = self.fleet.running
        served = self._served()
        if len(running) < self._limits.num_workers or not self._book.has_waiting_besides(served):
            return None
        jobs = [worker.job for worker in running if worker.job]
        surplus = [job for job in jobs if all(served[user] > 1 for user in self._book.users_of(job))]
        if not surplus:
            return None
        youngest = max(surplus, key=lambda job: job.started_at)
        room_at = youngest.started_at + QUICK_S
        if now < room_at:
            return room_at
        self.fleet.stop(next(worker for worker in running if worker.job is youngest))
        self._book.requeue(youngest)
        return None

    def _get_ready(self, now: float) -> None:
        """Start the service if there is work and no zygote; deadlines run from when that is done."""
        start = self._start
        if start is None:
            if not self.fleet.has_zygote and self._book.has_queued:
                self._start = start = Start(self._maker, self._limits)
                self.delivery.call(partial(start.run, self.wake))
            return
        zygote = start.take_zygote()
        if zygote is not None:
            self.fleet.adopt(zygote)
        if start.is_loaded and self.fleet.is_ready:
            self._start = None
            self._book.set_ready(now)
        elif start.error or now >= start.deadline:
            self._fail_start(start, start.error or f"it was not ready after {start.timeout_s:g} s")

    def _fail_start(self, start: Start, reason: str) -> None:
        self._start = None
        start.give_up()
        self.fleet.close(reason)
        self.delivery.fail(self._book.fail_start(f"the compile service cannot be started: {reason}"))

    def _react(self) -> bool:
        """Do what events ask for; False if there were none."""
        events = self.fleet.take_events()
        for event in events:
            if isinstance(event, Done):
                self._finish(event.job, event.message)
            elif isinstance(event, Lost):
                self._lose(event)
            else:
                self._collapse(event)
        return bool(events)

    def _finish(self, job: Job, message: Message) -> None:
        head = message.head
        if "error" in head:
            self.delivery.fail(self._book.fail(job, head["error"], is_timeout="out_of_memory" in head))
        else:
            self.delivery.finish(job, message)

    def _lose(self, event: Lost) -> None:
        if event.is_cpu_limit:
            text = f"timeout: the grammar takes more than {self._limits.timeout_s:g} processor seconds to compile"
            self.delivery.fail(self._book.fail(event.job, text, is_timeout=True))
        else:
            self._try_again(event.job, f"the process that compiled the grammar is gone: {event.reason}")

    def _collapse(self, event: Collapsed) -> None:
        if self._start is not None:
            self._fail_start(self._start, event.reason)
        else:
            logger.warning("the compile process is gone, and is started again when it is needed: %s", event.reason)
        self._book.set_down()
        for job in event.jobs:
            self._try_again(job, f"the compile process is gone: {event.reason}")

    def _try_again(self, job: Job, error: str) -> None:
        """A job whose process is gone runs once more; the second time it may be the reason."""
        if job.num_starts < _MOST_STARTS:
            self._book.requeue(job)
        else:
            self.delivery.fail(self._book.fail(job, error))
