"""An outside scanner for secrets: a program that reads texts and answers where secrets stand.

It is started once and fed JSON lines {"id": 7, "text": "..."}. For every secret it writes a line
{"id": 7, "start": 12, "end": 52, "rule": "badge"} (offsets in characters, end exclusive), and when it
is through with a text a line {"id": 7} alone. It must not hold its output back.
Whatever goes wrong ends the run with one SetupError, which never shows what the program wrote.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import weakref
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import IO

import msgspec

from clawcli.errors import SetupError

TIMEOUT_S = 60.0
"""Longest wait for the next line of a scanner."""

_RULE = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_HINT = 'Try it by hand: echo \'{"id": 0, "text": "x"}\' | COMMAND must answer {"id": 0} at once.'


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a scanner."""

    id: int
    start: int | None = None
    end: int | None = None
    rule: str | None = None


class Found(msgspec.Struct, frozen=True):
    """What a scanner found in one text; offsets in characters."""

    start: int
    end: int
    rule: str


class Scanner:
    """A scanner that is started with the first texts and ends with this object."""

    def __init__(self, command: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Keep the command; nothing runs yet, so that a scanner can be sent to other processes.

        Raises:
            SetupError: the command is not one that a shell could split.
        """
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise SetupError(f"--redact-with {command}: {error}.", "Quote it.") from error
        if not self._command:
            raise SetupError("--redact-with names no command.", "Name a program.")
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: SimpleQueue[bytes] | None = None

    def find(self, texts: Sequence[str]) -> list[list[Found]]:
        """Find the secrets of some texts.

        Returns:
            For each text what was found, in the order of the answers.

        Raises:
            SetupError: the scanner cannot be started, dies, is silent, or answers nonsense.
        """
        stdin = self._started()
        found: list[list[Found]] = [[] for _ in texts]
        open_ids = set(range(len(texts)))
        # a scanner that answers while we still write would otherwise wait for us as we for it
        writer = threading.Thread(target=_write, args=(stdin, texts), daemon=True)
        writer.start()
        try:
            while open_ids:
                line = self._read()
                if line.id not in open_ids:
                    raise self._nonsense("an id that is not one of the texts it has")
                if line.start is None and line.end is None and line.rule is None:
                    open_ids.remove(line.id)
                    continue
                found[line.id].append(self._checked(line, len(texts[line.id])))
        except SetupError:
            self.close()
            raise
        writer.join(self._timeout_s)
        return found

    def close(self) -> None:
        """End the scanner."""
        if self._process is not None:
            self._finalizer()
            self._process = None

    def _started(self) -> IO[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # it may speak of what it found there
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                raise self._failed(f"cannot be started ({error.strerror})") from error
            self._finalizer = weakref.finalize(self, _end, self._process)
            self._lines = SimpleQueue()
            forwarded = self._process.stdout, self._lines
            threading.Thread(target=_forward, args=forwarded, daemon=True).start()
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> _Line:
        assert self._lines is not None
        try:
            raw = self._lines.get(timeout=self._timeout_s)
        except Empty:
            raise self._failed(f"was silent for {self._timeout_s:g} s") from None
        if not raw:
            raise self._failed("ended before it had answered")
        try:
            return msgspec.json.decode(raw, type=_Line)
        except msgspec.DecodeError:
            # not from the error: it may quote the line
            raise self._nonsense("a line that is not {id, start, end, rule}") from None

    def _checked(self, line: _Line, length: int) -> Found:
        if line.start is None or line.end is None or not 0 <= line.start < line.end <= length:
            raise self._nonsense("a start and end that are not in the text")
        if line.rule is None or not _RULE.fullmatch(line.rule):
            raise self._nonsense("a rule whose name is not like build_badge")
        return Found(line.start, line.end, line.rule)

    def _nonsense(self, what: str) -> SetupError:
        return self._failed(f"answered {what}")

    def _failed(self, what: str) -> SetupError:
        return SetupError(f"The scanner of --redact-with ({self._command[0]}) {what}.", _HINT)


def _write(stdin: IO[bytes], texts: Sequence[str]) -> None:
    try:
        for number, text in enumerate(texts):
            stdin.write(msgspec.json.encode({"id": number, "text": text}) + b"\n")
        stdin.flush()
    except (OSError, ValueError):
        # it has ended, or was ended: whoever waits for its answers is told so there
        return


def _forward(stdout: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    """Pass the lines on, and an empty one at the end."""
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put(b"")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        try:
            process.stdin.close()
        except OSError:
            return  # what was not written yet has no reader
