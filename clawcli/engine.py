"""Run a handler in this process or in several: the one place that knows about processes.

A handler is an object that keeps state between calls, such as decoded records that wait to be
linked. With one worker it lives here and nothing is copied; with more, each lives in a process of
its own and arguments and results travel. What is computed never depends on how many there are.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from clawcli.errors import ClawError, SetupError


@contextmanager
def without_gc() -> Iterator[None]:
    """Run without the collector of circular garbage.

    It looks at all objects again and again, and a batch of calls is a million of them, none of
    them garbage: that would cost as much as the work. Handlers break their circles themselves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def processors() -> int:
    """Processors that this process may use, and 16 at most: how many workers are of use."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 16)


class Workers:
    """Handlers by number; what is sent to one is done in that order.

    A handler in this process is closed at the end; those in others end with their processes.
    """

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> None:
        """Start count handlers make(*arguments); both must survive pickling if count > 1."""
        self.count = count
        self._results: deque[tuple[int, Any]] = deque()
        """Results that were waited past."""
        self._local = make(*arguments) if count == 1 else None
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._arrived: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()
        self._num_sent = 0
        # a forked child would inherit locks that threads of the table library hold
        context = multiprocessing.get_context("spawn")
        for worker in range(count if count > 1 else 0):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
            with _undisturbed():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
            # a worker whose answer nobody takes would stand still while this process computes
            threading.Thread(
                target=_take_answers, args=(ours, worker, self._arrived), daemon=True
            ).start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._local is not None:
            self._local.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def send(self, worker: int, method: str, *arguments: Any) -> int:
        """Have a handler work; what comes of it is to be received. Returns a number of the call."""
        self._num_sent += 1
        if self._local is not None:
            self._results.append((worker, getattr(self._local, method)(*arguments)))
        else:
            try:
                with _without_sigpipe():
                    self._pipes[worker].send((self._num_sent, method, arguments))
            except BrokenPipeError:
                raise _died() from None
        return self._num_sent

    def receive(self) -> tuple[int, Any]:
        """Wait for the next result of any worker.

        Raises:
            ClawError: what the handler raised.
            SetupError: its process died.
            RuntimeError: it has a bug.
        """
        if self._results:
            return self._results.popleft()
        worker, _, result = self._next()
        return worker, result

    def each(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Have some handlers do one thing each, after what they do now, and wait for all."""
        if self._local is not None:
            return {w: getattr(self._local, method)(*values) for w, values in arguments.items()}
        waited = {self.send(worker, method, *values) for worker, values in arguments.items()}
        results: dict[int, Any] = {}
        while len(results) < len(arguments):
            worker, number, result = self._next()
            if number in waited:
                results[worker] = result
            else:
                self._results.append((worker, result))
        return results

    def map(self, method: str, values: Sequence[Any]) -> Iterator[Any]:
        """Have the handlers do one thing with each of some values; the results, in their order."""
        for start in range(0, len(values), self.count):
            group = values[start : start + self.count]
            found = self.each(method, {worker: (value,) for worker, value in enumerate(group)})
            yield from (found[worker] for worker in range(len(group)))

    def _next(self) -> tuple[int, int, Any]:
        worker, data = self._arrived.get()
        if data is None:
            raise _died()
        number, succeeded, result = pickle.loads(data)
        if not succeeded:
            raise result if isinstance(result, ClawError) else RuntimeError(result)
        return worker, number, result


def _died() -> SetupError:
    return SetupError(
        "A worker process was killed, as happens when memory runs out.",
        "Run again with fewer --workers: it goes on from the last commit.",
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Start a process whole: stopped half-way, or by a Ctrl-C that it hears, it would complain."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: received.append(number))
    resource_tracker.ensure_running()  # its own start ends with nothing blocked
    # what is blocked here is blocked there: the parent decides when to stop
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received:
        signal.raise_signal(number)


@contextmanager
def _without_sigpipe() -> Iterator[None]:
    """Write to a pipe that a process may have left, without ending as `claw | head` does."""
    ends = threading.current_thread() is threading.main_thread()
    ends = ends and signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _take_answers(pipe: Connection, worker: int, arrived: SimpleQueue) -> None:
    while True:
        try:
            arrived.put((worker, pipe.recv_bytes()))
        except (EOFError, OSError):
            arrived.put((worker, None))
            return


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    gc.disable()  # see without_gc
    handler = make(*arguments)
    while True:
        try:
            number, method, values = pipe.recv()
        except (EOFError, ConnectionResetError):
            return  # the parent was killed
        try:
            answer = (number, True, getattr(handler, method)(*values))
        except ClawError as error:
            answer = (number, False, error)
        except Exception as error:
            answer = (number, False, f"{type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return
