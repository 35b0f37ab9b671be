"""How far a verb is, while it works: a bar on a terminal, a line every half minute elsewhere.

What takes less than a second shows nothing. Everything goes to stderr, since stdout is for what was
asked for, and is gone from a terminal when the work is done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

DELAY_S = 1.0
"""What takes less shows nothing."""
LINE_EVERY_S = 30.0
"""Where there is no terminal."""
_RATE_OVER_S = 30.0
_BAR_WIDTH = 20


class Meter:
    """How far a verb is: its work tells, the display asks.

    Args:
        clock: tells the time in seconds; for tests.

    Example:
        >>> now = iter([0.0, 2.0, 4.0])
        >>> meter = Meter(clock=lambda: next(now))
        >>> meter.tell(3_000_000, 12_000_000, 1_500)
        >>> meter.words()
        '3.0 MB of 12.0 MB, 750.0 kB/s, 0:00:12 left, 1,500 steps'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_bytes = self.total_bytes = self.num_steps = 0
        self._clock = clock
        # a rate over the whole run would still count a long start when the work is fast again
        self._samples = deque([(clock(), 0)])

    def tell(self, num_bytes: int, total_bytes: int, num_steps: int) -> None:
        """Say how far the work is: bytes read, bytes in all (0 = unknown), steps so far."""
        self.num_bytes, self.total_bytes, self.num_steps = num_bytes, total_bytes, num_steps
        now = self._clock()
        self._samples.append((now, num_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_OVER_S:
            self._samples.popleft()

    def words(self) -> str:
        """Say it in words: bytes, rate, time left where it can be known, and steps."""
        from rich.filesize import decimal

        since, before = self._samples[0]
        passed_s = self._clock() - since
        rate = (self.num_bytes - before) / passed_s if passed_s else 0.0
        said = [decimal(self.num_bytes)]
        if self.total_bytes:
            said[0] += f" of {decimal(self.total_bytes)}"
        if rate:
            said.append(f"{decimal(int(rate))}/s")
        left = self.total_bytes - self.num_bytes
        if rate and left > 0:
            said.append(f"{timedelta(seconds=round(left / rate))} left")
        return ", ".join([*said, f"{self.num_steps:,} steps"])


@contextmanager
def on_terminal(label: str, meter: Meter | None) -> Iterator[None]:
    """Show a bar, or where there is no meter that the work goes on, from the first second on."""
    from rich.console import Console

    console = Console(stderr=True)
    with _later(console, _display(label, meter)):
        yield


@contextmanager
def _later(console: Console, display: Callable[[], RenderableType]) -> Iterator[None]:
    from rich.live import Live

    # what goes to stdout goes there and nowhere else, bar or not
    live = Live(get_renderable=display, console=console, transient=True, redirect_stdout=False)
    timer = threading.Timer(DELAY_S, live.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        live.stop()


def _display(label: str, meter: Meter | None) -> Callable[[], RenderableType]:
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    spinner = Spinner("dots", label)

    def display() -> RenderableType:
        if meter is None:
            return spinner
        row = Table.grid(padding=(0, 1))
        total = meter.total_bytes or None
        bar = ProgressBar(total, meter.num_bytes, width=_BAR_WIDTH)
        words = Text(meter.words(), no_wrap=True, overflow="ellipsis")
        row.add_row(Text(label, no_wrap=True), bar, words)
        return row

    return display


@contextmanager
def in_lines(label: str, meter: Meter, say: Callable[[str], None]) -> Iterator[None]:
    """Say a line every half minute, for logs of long jobs."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(LINE_EVERY_S):
            say(f"{label}: {meter.words()}.")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
