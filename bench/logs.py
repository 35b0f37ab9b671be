"""Logs to measure ingest with: seeded, of any size, written once and removed by the bench.

    request log    full-history {request, response} lines: an agent reads code and edits it, 200
                   conversations at a time share one system prompt and one list of tools, and each
                   request repeats all messages before it
    short log      {request, response} lines of about 2 KB, each a conversation of its own
    sessions       many small files of one Claude Code session each

The text is made of lines that look like source, listings and test output, so that it compresses as
such text does (zstd-3 by 5 to 6).
"""

from __future__ import annotations

import json
import random
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

WORDS = [
    "account",
    "adapter",
    "append",
    "batch",
    "buffer",
    "build",
    "cache",
    "check",
    "client",
    "close",
    "column",
    "commit",
    "config",
    "count",
    "create",
    "cursor",
    "decode",
    "default",
    "delete",
    "digest",
    "encode",
    "entry",
    "error",
    "event",
    "expect",
    "export",
    "fetch",
    "field",
    "filter",
    "format",
    "frame",
    "group",
    "handle",
    "header",
    "index",
    "insert",
    "item",
    "iterate",
    "key",
    "label",
    "limit",
    "line",
    "list",
    "load",
    "lock",
    "lookup",
    "merge",
    "message",
    "method",
    "module",
    "name",
    "node",
    "offset",
    "open",
    "option",
    "order",
    "output",
    "page",
    "parent",
    "parse",
    "path",
    "pattern",
    "point",
    "prefix",
    "query",
    "queue",
    "range",
    "read",
    "record",
    "reduce",
    "region",
    "remove",
    "render",
    "replace",
    "request",
    "resolve",
    "response",
    "result",
    "retry",
    "return",
    "rotate",
    "sample",
    "schema",
    "score",
    "segment",
    "select",
    "send",
    "series",
    "session",
    "shard",
    "size",
    "slot",
    "source",
    "split",
    "stack",
    "start",
    "state",
    "step",
    "store",
    "stream",
    "string",
    "table",
    "target",
    "task",
    "test",
    "token",
    "trace",
    "update",
    "user",
    "value",
    "version",
    "view",
    "window",
    "write",
]
_LINES = (
    "    {a}_{b} = self.{c}({a}, {d}={n})",
    "def {a}_{b}({c}, *, {d}: int = {n}) -> {b}:",
    "src/{a}/{b}_{c}.py:{n}: in {d}_{a}",
    "    if {a}.{b} is None or {c} > {n}:",
    "E       AssertionError: assert {n} == {m}",
    "-rw-r--r-- 1 root root {n} {a}_{b}.py",
    "        raise ValueError(f'{a} {b} {{{c}}}')",
    "    return [{a} for {a} in {b} if {a}.{c} != {n}]",
    "tests/test_{a}_{b}.py::test_{c}_{d} PASSED [{m}%]",
    "2026-11-{m:02d} 10:{m:02d} INFO {a}.{b}: {c} {d} took {n} ms",
)
OPEN_CONVERSATIONS = 200


class Text:
    """Text that looks like what an agent reads: one project has few names, and often the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = self.random.sample(WORDS, 24)
        self.recent: deque[str] = deque(maxlen=400)

    def lines(self, num_bytes: int) -> str:
        """Make about num_bytes of lines."""
        pick, found, size = self.random, [], 0
        while size < num_bytes:
            if len(self.recent) > 8 and pick.random() < 0.1:  # files are read again
                start = pick.randrange(len(self.recent) - 8)
                again = [self.recent[start + place] for place in range(8)]
                found += again
                size += sum(map(len, again)) + 8
                continue
            words = pick.choices(self.names, k=4)
            line = pick.choice(_LINES).format(
                a=words[0],
                b=words[1],
                c=words[2],
                d=words[3],
                n=pick.randrange(1, 100),
                m=pick.randrange(1, 29),
            )
            found.append(line)
            self.recent.append(line)
            size += len(line) + 1
        return "\n".join(found)

    def prose(self, num_bytes: int) -> str:
        """Make about num_bytes of words."""
        return " ".join(self.random.choices(self.names, k=max(1, num_bytes // 7)))

    def call_id(self) -> str:
        """Make an id as servers do."""
        return f"call_{self.random.getrandbits(96):024x}"


def _tools(text: Text) -> str:
    names = ("read_file", "edit_file", "search", "run", "list_files", "finish")
    schemas = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": text.prose(400),
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string", "description": text.prose(120)}},
                    "required": ["path"],
                },
            },
        }
        for name in names
    ]
    return json.dumps(schemas)


class Conversation:
    """One attempt: its messages as JSON, in as many spellings as a client has."""

    def __init__(self, text: Text, spellings: int) -> None:
        self.text, self.spellings = text, spellings
        self.messages: list[list[str]] = []
        self.turns = text.random.randrange(44, 60)
        self.started = 1.76e9 + text.random.random() * 86400
        self.add({"role": "user", "content": text.prose(700)})

    def add(self, message: dict) -> None:
        """Append a message, in every spelling."""
        keys = list(message)
        self.messages.append(
            [
                json.dumps(
                    {
                        key: message[key]
                        for key in keys[place % len(keys) :] + keys[: place % len(keys)]
                    }
                )
                for place in range(self.spellings)
            ]
        )

    def turn(self, number: int) -> tuple[dict, list[dict]]:
        """Make the next answer, and what follows it."""
        text, call_id = self.text, self.text.call_id()
        path = f"src/{text.random.choice(WORDS)}/{text.random.choice(WORDS)}.py"
        answer = {
            "role": "assistant",
            "content": text.prose(200),
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "read_file", "arguments": json.dumps({"path": path})},
                }
            ],
        }
        size = int(text.random.expovariate(1 / 2400)) + 200
        return answer, [{"role": "tool", "tool_call_id": call_id, "content": text.lines(size)}]


def request_log(path: Path, num_bytes: int, *, spellings: int = 1, seed: int = 1) -> int:
    """Write a full-history request log; returns the number of its records.

    Args:
        path: file to write.
        num_bytes: about how much.
        spellings: 1 = the client repeats its history byte for byte; more = each request spells
            its messages anew, in one of so many orders of their keys.
        seed: of all that is random.
    """
    text = Text(seed)
    system = json.dumps({"role": "system", "content": text.lines(6000)})
    tools = _tools(text)
    running = [Conversation(text, spellings) for _ in range(OPEN_CONVERSATIONS)]
    done = [text.random.randrange(c.turns) for c in running]
    for conversation, turns in zip(running, done, strict=True):
        for number in range(turns):  # a log begins in the middle of things
            answer, more = conversation.turn(number)
            for message in (answer, *more):
                conversation.add(message)
    written = records = 0
    with path.open("w", encoding="utf-8") as file:
        while written < num_bytes:
            place = text.random.randrange(OPEN_CONVERSATIONS)
            conversation, turn = running[place], done[place]
            answer, more = conversation.turn(turn)
            spelling = text.random.randrange(spellings)
            history = ", ".join([system, *(m[spelling] for m in conversation.messages)])
            at = conversation.started + turn * 9.25
            response = json.dumps(
                {
                    "id": f"chatcmpl-{text.random.getrandbits(96):024x}",
                    "object": "chat.completion",
                    "created": int(at),
                    "model": "agent-8b",
                    "choices": [{"index": 0, "message": answer, "finish_reason": "tool_calls"}],
                    "usage": {"prompt_tokens": len(history) // 4, "completion_tokens": 90},
                }
            )
            line = (
                f'{{"timestamp": {at}, "request": {{"model": "agent-8b", "temperature": 1.0, '
                f'"messages": [{history}], "tools": {tools}}}, "response": {response}}}\n'
            )
            file.write(line)
            written, records = written + len(line), records + 1
            for message in (answer, *more):
                conversation.add(message)
            done[place] = turn + 1
            if done[place] >= conversation.turns:
                running[place], done[place] = Conversation(text, spellings), 0
    return records


def short_log(path: Path, records: int, *, seed: int = 2) -> int:
    """Write a log of calls of about 2 KB, each by itself; returns its bytes."""
    text = Text(seed)
    system = json.dumps({"role": "system", "content": text.prose(300)})
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for number in range(records):
            asked = json.dumps({"role": "user", "content": text.lines(900)})
            answer = {"role": "assistant", "content": text.prose(450)}
            response = json.dumps(
                {
                    "id": f"chatcmpl-{text.random.getrandbits(96):024x}",
                    "object": "chat.completion",
                    "created": 1_760_000_000 + number,
                    "model": "agent-8b",
                    "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 300, "completion_tokens": 120},
                }
            )
            line = (
                f'{{"timestamp": {1.76e9 + number}, "request": {{"model": "agent-8b", '
                f'"messages": [{system}, {asked}]}}, "response": {response}}}\n'
            )
            file.write(line)
            written += len(line)
    return written


def sessions(folder: Path, files: int, *, seed: int = 3) -> int:
    """Write small Claude Code sessions, spread over a year; returns their bytes."""
    text = Text(seed)
    written = 0
    for number in range(files):
        # as many to a folder as a project has
        place = folder / f"project-{number // 500:03d}"
        place.mkdir(parents=True, exist_ok=True)
        session = str(uuid.UUID(int=text.random.getrandbits(128)))
        lines = "".join(f"{json.dumps(line)}\n" for line in _session(text, session))
        (place / f"{session}.jsonl").write_text(lines, encoding="utf-8")
        written += len(lines)
    return written


def _session(text: Text, session: str) -> Iterator[dict]:
    day = text.random.randrange(365)
    parent = None

    def line(kind: str, message: dict, second: int) -> dict:
        nonlocal parent
        uid = str(uuid.UUID(int=text.random.getrandbits(128)))
        month, date = 1 + day // 31, 1 + day % 28
        found = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/work",
            "sessionId": session,
            "version": "2.1.20",
            "type": kind,
            "message": message,
            "uuid": uid,
            "timestamp": f"2026-{month:02d}-{date:02d}T10:{second // 60:02d}:{second % 60:02d}.000Z",
        }
        parent = uid
        return found

    yield line("user", {"role": "user", "content": text.prose(200)}, 0)
    for turn in range(text.random.randrange(1, 5)):
        call_id = f"toolu_{text.random.getrandbits(96):024x}"
        yield line(
            "assistant",
            {
                "id": f"msg_{text.random.getrandbits(96):024x}",
                "type": "message",
                "role": "assistant",
                "model": "agent-8b",
                "content": [
                    {"type": "text", "text": text.prose(150)},
                    {"type": "tool_use", "id": call_id, "name": "Read", "input": {"file": "a.py"}},
                ],
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 300, "output_tokens": 60},
            },
            10 * turn + 1,
        )
        result = [{"type": "tool_result", "tool_use_id": call_id, "content": text.lines(500)}]
        yield line("user", {"role": "user", "content": result}, 10 * turn + 2)
