"""What tests of several modules share: builders of data, and the command line in this process."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# workers of the test run share the cores, and idle threads of torch spin
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "CLAW_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="claw-tests-")
    os.environ["CLAW_CACHE_DIR"] = _CACHE.name

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_data"
SHARED = ROOT.parent / "shared"


def shared(*parts):
    """Return a path of the shared corpus, or skip the test where it is missing."""
    path = SHARED.joinpath("corpus", *parts)
    if not path.exists():
        pytest.skip(f"needs ../shared/corpus/{'/'.join(parts)}, which is not here")
    return path


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def report(self):
        return json.loads(self.out)

    @property
    def error(self):
        return json.loads(self.err.splitlines()[-1])["error"]


@pytest.fixture
def claw(capsys):
    """Run one command line in this process; gives exit code, stdout and stderr."""
    from clawcli.cli import app

    def run(*arguments):
        capsys.readouterr()
        code = app.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def assistant(content="", *, calls=(), **extra):
    message = {"role": "assistant", "content": content, **extra}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
            for i, n, a in calls
        ]
    return message


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def tool(content, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def pair(messages, *answers, tools=None, at=None, uid=None, finish=None, **extra):
    """One {request, response} record; several answers are choices."""
    request = {"model": "m", "messages": messages}
    if tools is not None:
        request["tools"] = tools
    request.update(extra.pop("request", {}))
    response = {
        "object": "chat.completion",
        "choices": [
            {"index": i, "message": a, "finish_reason": finish or "stop"}
            for i, a in enumerate(answers)
        ],
    }
    if uid is not None:
        response["id"] = uid
    record = {"request": request, "response": response, **extra}
    if at is not None:
        record["timestamp"] = at
    return record


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def tau(attempts):
    """A tau-bench result file: (task_id, trial, reward, messages) each."""
    return json.dumps(
        [
            {"task_id": task, "trial": trial, "reward": reward, "info": {}, "traj": messages}
            for task, trial, reward, messages in attempts
        ]
    )
