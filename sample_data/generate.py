"""Write agent-logs/part-{0,1,2}.jsonl: the sample agent's calls as three replicas logged them.

Run as `python sample_data/generate.py [DIRECTORY]`; the same code gives the same bytes. Each line
is one chat completion, {"request", "response", "timestamp", "task_id", "trial"}, with the reward
on the last call of an attempt. As in real logs

* calls of many attempts interleave, and the calls of one attempt lie in several files;
* a response was cut off and asked for again (the first answer is a dead end), and a call failed
  with an error and was repeated;
* a server with a reasoning parser returns `reasoning_content`, and its client sends it back;
* two records are damaged: one is two halves written over each other, one lost its messages.

Token counts are estimates (4 characters a token): no tokenizer was involved.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_tasks import SYSTEM, TASKS, Task, Turn
from lending_library import TOOLS, Library

HERE = Path(__file__).parent
SEED = 20260302
NUM_FILES = 3
START_S = 1772442000.0  # 2026-03-02 09:00 UTC
MODEL = "sample-agent"
CHARS_PER_TOKEN = 4
CACHE_BLOCK_TOKENS = 16

ABORTED = ("move-bike", 0, 3)  # task, trial, turn: answered twice, the first answer cut off
FAILED = ("swap-ladder", 1, 4)  # answered with an error at first


@dataclass(slots=True)
class Client:
    """One attempt's conversation, its clock, and the calls that it logged."""

    task_id: str
    trial: int
    rng: random.Random
    reasons: bool
    messages: list[dict[str, Any]]
    now_s: float
    cached_tokens: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)

    def call(self, message: dict[str, Any], finish_reason: str) -> None:
        """Log one call that returned this message."""
        prompt_tokens = _tokens(self.messages) + _tokens(TOOLS)
        completion_tokens = _tokens(message)
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        response = {
            "id": f"chatcmpl-{self.rng.randbytes(8).hex()}",
            "object": "chat.completion",
            "created": int(self.now_s),
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }
        self._log(response)
        self.cached_tokens = prompt_tokens // CACHE_BLOCK_TOKENS * CACHE_BLOCK_TOKENS
        self.now_s += self.rng.uniform(0.5, 4)

    def fail(self) -> None:
        """Log one call that returned an error."""
        message = "The server is overloaded. Please try again later."
        self._log({"error": {"message": message, "type": "server_error", "code": 503}})
        self.now_s += self.rng.uniform(5, 10)

    def _log(self, response: dict[str, Any]) -> None:
        request = {
            "model": MODEL,
            "messages": list(self.messages),
            "tools": TOOLS,
            "temperature": 0.7,
            "max_tokens": 512,
        }
        self.records.append(
            {
                "request": request,
                "response": response,
                "timestamp": round(self.now_s, 3),
                "task_id": self.task_id,
                "trial": self.trial,
            }
        )


def _tokens(value: Any) -> int:
    return len(json.dumps(value)) // CHARS_PER_TOKEN


def play(task: Task, trial: int, rng: random.Random) -> list[dict[str, Any]]:
    """Play one attempt against a fresh library and return its log records in order."""
    turns = task.attempts[trial]
    library = Library()
    client = Client(
        task_id=task.task_id,
        trial=trial,
        rng=rng,
        reasons=any(turn.thought for turn in turns),
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": task.opening},
        ],
        now_s=START_S + rng.uniform(0, 300),
    )
    for index, turn in enumerate(turns):
        message = _message(turn, client)
        if (task.task_id, trial, index) == ABORTED:
            half = turn.text[: len(turn.text) // 2]
            client.call({"role": "assistant", "content": half}, "abort")
        if (task.task_id, trial, index) == FAILED:
            client.fail()
        client.call(message, "tool_calls" if turn.calls else "stop")
        client.messages.append(message)
        client.messages += _answers(turn, message, library, client)
    client.records[-1]["reward"] = float(library.changes == task.goal)
    return client.records


def _message(turn: Turn, client: Client) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if client.reasons:
        message["reasoning_content"] = turn.thought
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{client.rng.randbytes(6).hex()}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for name, arguments in turn.calls
        ]
    return message


def _answers(
    turn: Turn, message: dict[str, Any], library: Library, client: Client
) -> list[dict[str, Any]]:
    if not turn.calls:
        client.now_s += client.rng.uniform(5, 40)
        return [{"role": "user", "content": turn.reply}] if turn.reply else []
    client.now_s += client.rng.uniform(0.05, 0.5)
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": library.run(name, arguments)}
        for call, (name, arguments) in zip(message["tool_calls"], turn.calls, strict=True)
    ]


def agent_logs() -> list[list[str]]:
    """Play all attempts and deal their calls to the files; each file is in order of time."""
    # one generator per attempt, so that a changed attempt leaves the bytes of the others alone
    records = [
        record
        for task in TASKS
        for trial in range(len(task.attempts))
        for record in play(task, trial, random.Random(f"{SEED} {task.task_id} {trial}"))
    ]
    records.sort(key=lambda record: record["timestamp"])
    rng = random.Random(SEED)
    files: list[list[str]] = [[] for _ in range(NUM_FILES)]
    for record in records:
        files[rng.randrange(NUM_FILES)].append(json.dumps(record))
    _damage(files, rng)
    return files


def _damage(files: list[list[str]], rng: random.Random) -> None:
    """Add a line that is two halves of others, and a record without messages."""
    one, other = rng.sample(files[1], 2)
    files[1].insert(len(files[1]) // 2, one[: len(one) // 2] + other[len(other) // 2 :])
    record = json.loads(rng.choice(files[2]))
    del record["request"]["messages"], record["task_id"], record["trial"]
    record.pop("reward", None)
    record["response"]["id"] = f"chatcmpl-{rng.randbytes(8).hex()}"
    files[2].insert(len(files[2]) // 2, json.dumps(record))


def write(directory: Path) -> None:
    """Write the three files into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for index, lines in enumerate(agent_logs()):
        path = directory / f"part-{index}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "agent-logs")
