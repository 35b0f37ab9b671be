"""Run a handler in this process or in several: the one place that knows about processes.

A handler is an object that keeps state between calls, such as decoded records that wait to be
linked. With one worker it lives here and nothing is copied; with more, each lives in a process of
its own and arguments and results travel. What is computed never depends on how many there are.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from clawcli.errors import ClawError

_STOP = None


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


class Workers:
    """Handlers by number, each busy with at most one call."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> None:
        """Start count handlers make(*arguments); both must survive pickling if count > 1."""
        self.count = count
        self._results: deque[tuple[int, Any]] = deque()
        self._local = make(*arguments) if count == 1 else None
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        # a forked child would inherit locks that threads of the table library hold
        context = multiprocessing.get_context("spawn")
        for _ in range(count if count > 1 else 0):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def send(self, worker: int, method: str, *arguments: Any) -> None:
        """Have a handler work; what comes of it is to be received."""
        if self._local is not None:
            self._results.append((worker, getattr(self._local, method)(*arguments)))
        else:
            self._pipes[worker].send((method, arguments))

    def receive(self) -> tuple[int, Any]:
        """Wait for the next result.

        Raises:
            ClawError: what the handler raised.
            RuntimeError: its process died, or it has a bug.
        """
        if self._local is not None:
            return self._results.popleft()
        pipe = wait(self._pipes)[0]
        worker = self._pipes.index(pipe)  # type: ignore[arg-type]
        try:
            succeeded, result = pipe.recv()  # type: ignore[union-attr]
        except EOFError as error:
            raise RuntimeError("A worker process died; is there enough memory?") from error
        if not succeeded:
            raise result if isinstance(result, ClawError) else RuntimeError(result)
        return worker, result

    def each(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Have some handlers, none of them busy, do one thing each and wait for all."""
        results: dict[int, Any] = {}
        if self._local is not None:
            for worker, values in arguments.items():
                results[worker] = getattr(self._local, method)(*values)
            return results
        for worker, values in arguments.items():
            self.send(worker, method, *values)
        while len(results) < len(arguments):
            worker, result = self.receive()
            results[worker] = result
        return results


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    gc.disable()  # see without_gc
    handler = make(*arguments)
    while True:
        try:
            method, values = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(handler, method)(*values))
        except ClawError as error:
            answer = (False, error)
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return
