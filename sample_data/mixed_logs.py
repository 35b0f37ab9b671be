"""Write mixed-logs/: two days of a small team's logs, from three programs, in three formats.

Run as `python sample_data/mixed_logs.py [DIRECTORY]`; the same code gives the same bytes. The logs
show what `claw ingest` has to deal with, in few lines:

    claude-code/SESSION.jsonl       a coding session of Claude Code
    claude-code-grown/SESSION.jsonl the same session a day later: the same file, and more lines
    support.jsonl                   an Anthropic Messages log: bodies of requests and responses
    deploy.jsonl                    an OpenAI chat log; a tool's answer shows a password in a URL
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SESSION = str(uuid.UUID(int=0x5E5510))
START_S = 1772528400.0  # 2026-03-03 09:00 UTC
PASSWORD = "paper-lantern-4417"
"""Made up; it stands in the URL of a database that does not exist."""


class Session:
    """The lines of one Claude Code session; each continues the one before."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._parent: str | None = None

    def _add(self, kind: str, message: dict[str, Any]) -> None:
        number = len(self.lines)
        uid = str(uuid.UUID(int=0xA000 + number))
        line = {
            "parentUuid": self._parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/ada/library",
            "sessionId": SESSION,
            "version": "2.1.20",
            "gitBranch": "main",
            "type": kind,
            "message": message,
            "uuid": uid,
            "timestamp": f"2026-03-03T09:{number:02d}:00.000Z",
        }
        self.lines.append(json.dumps(line))
        self._parent = uid

    def ask(self, text: str) -> None:
        """Add what the user wrote."""
        self._add("user", {"role": "user", "content": text})

    def answer(self, text: str, stop_reason: str = "end_turn", **call: Any) -> None:
        """Add the model's answer; `call` is the tool that it calls, with its input."""
        number = len(self.lines)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        for name, given in call.items():
            content.append(
                {"type": "tool_use", "id": f"toolu_{number:02d}", "name": name, "input": given}
            )
        message = {
            "id": f"msg_{number:02d}",
            "type": "message",
            "role": "assistant",
            "model": "sample-coder",
            "content": content,
            "stop_reason": "tool_use" if call else stop_reason,
            "usage": {"input_tokens": 900 + 120 * number, "output_tokens": len(text) // 4},
        }
        self._add("assistant", message)

    def result(self, text: str) -> None:
        """Add what the tool that was just called returned."""
        call_id = f"toolu_{len(self.lines) - 1:02d}"
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        self._add("user", {"role": "user", "content": [block]})


def session() -> tuple[list[str], list[str]]:
    """Return the lines of the session on the first day, and on the second."""
    log = Session()
    log.ask("The overdue report counts loans that were returned. Can you fix it?")
    log.answer("I will look at the report.", Read={"file_path": "overdue.py"})
    log.result("def overdue(loans, today):\n    return [x for x in loans if x.due < today]\n")
    log.answer(
        "It never looks at `returned`.",
        Edit={
            "file_path": "overdue.py",
            "old_string": "if x.due < today",
            "new_string": "if x.due < today and x.returned is None",
        },
    )
    log.result("The file overdue.py has been updated.")
    log.answer("Fixed: loans that were returned are no longer counted.")
    first = list(log.lines)
    log.ask("Please add a test as well.")
    log.answer(
        "A loan that was returned late is the case to test.",
        Write={
            "file_path": "test_overdue.py",
            "content": "def test_returned_late_is_not_overdue():\n"
            "    assert overdue([Loan(due=1, returned=3)], today=5) == []\n",
        },
    )
    log.result("The file test_overdue.py was written.")
    log.answer("Added, and it passes.")
    return first, log.lines


QUESTIONS = (
    ("Do you lend sewing machines?", "Yes, two of them, for a week at a time."),
    ("Can I renew online?", "Yes, once, unless somebody has reserved the thing."),
    ("What does a late day cost?", "Fifty cents, and never more than ten euros."),
    ("May my neighbour pick it up?", "Gladly, with your card."),
)


def support() -> list[str]:
    """Return four calls of one conversation, each with the whole history before it."""
    lines, history = [], []
    for number, (question, answer) in enumerate(QUESTIONS):
        history.append({"role": "user", "content": question})
        request = {
            "model": "sample-helper",
            "max_tokens": 300,
            "system": "You answer for a lending library, in one sentence.",
            "messages": list(history),
        }
        response = {
            "id": f"msg_support_{number}",
            "type": "message",
            "role": "assistant",
            "model": "sample-helper",
            "content": [{"type": "text", "text": answer}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 40 + 30 * number, "output_tokens": len(answer) // 4},
        }
        at = START_S + 1800 * number  # the conversation goes on over hours
        lines.append(json.dumps({"request": request, "response": response, "timestamp": at}))
        history.append({"role": "assistant", "content": answer})
    return lines


STEPS = (
    ("show_config", {"service": "catalogue"}, "The catalogue reads its settings from env."),
    ("check_database", {"service": "catalogue"}, "The database answers."),
    ("deploy", {"service": "catalogue", "version": "41"}, "Version 41 is live."),
)
SHOWN = (
    f"DATABASE_URL=postgres://catalogue:{PASSWORD}@db.example.internal:5432/catalogue",
    "SELECT 1: ok, 3 ms",
    "catalogue 40 -> 41, healthy",
)


def deploy() -> list[str]:
    """Return the calls of two attempts at one task; the history of each repeats the password."""
    return [line for trial in range(2) for line in _attempt(trial)]


def _attempt(trial: int) -> list[str]:
    lines = []
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You operate the services of a lending library."},
        {"role": "user", "content": f"Deploy the catalogue, please. (Request {7 + trial})"},
    ]
    for number, ((tool, arguments, said), shown) in enumerate(zip(STEPS, SHOWN, strict=True)):
        call_id = f"call_{trial}_{number}"
        function = {"name": tool, "arguments": json.dumps(arguments)}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        }
        lines.append(_call(messages, message, "tool_calls", trial, 2 * number))
        messages += [message, {"role": "tool", "tool_call_id": call_id, "content": shown}]
        message = {"role": "assistant", "content": said}
        lines.append(_call(messages, message, "stop", trial, 2 * number + 1))
        messages += [message, {"role": "user", "content": "Go on."}]
    return lines


def _call(
    messages: list[dict[str, Any]], message: dict[str, Any], reason: str, trial: int, number: int
) -> str:
    response = {
        "id": f"chatcmpl-deploy-{trial}-{number}",
        "object": "chat.completion",
        "created": int(START_S) + 3600 * trial + 900 * number,
        "model": "sample-agent",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }
    return json.dumps(
        {
            "request": {"model": "sample-agent", "messages": messages},
            "response": response,
            "timestamp": START_S + 3600 * trial + 900 * number,
            "task_id": "deploy-catalogue",
            "trial": trial,
        }
    )


def write(directory: Path) -> None:
    """Write the logs into a directory."""
    first, second = session()
    logs = {
        f"claude-code/{SESSION}.jsonl": first,
        f"claude-code-grown/{SESSION}.jsonl": second,
        "support.jsonl": support(),
        "deploy.jsonl": deploy(),
    }
    for name, lines in logs.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "mixed-logs")
