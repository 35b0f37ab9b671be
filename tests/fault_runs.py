"""Logs for runs that are disturbed, those runs, and what has to be the same afterwards."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import assistant, pair, system, tool, user, write_lines
from fault_worker import READY
from request_log import make

from clawcli.store import location, log, sidecars, table

WORKER = Path(__file__).with_name("fault_worker.py")
AT = "2026-01-01T00:00:{:02}.{:03}Z"


# -- logs ----------------------------------------------------------------------------------------


def write_requests(path, *, conversations=50, turns=50):
    """Full-history records of interleaved conversations, with the damage of real logs between."""
    chance = random.Random(7)
    states = [[system("You keep a garden."), user(f"plant {n}")] for n in range(conversations)]
    lines = []
    for turn in range(turns):
        for number in chance.sample(range(conversations), conversations):
            uid = f"{number}-{turn}"
            answer = assistant("", calls=[(f"c{uid}", "look", json.dumps({"at": uid}))])
            at = 1_700_000_000 + len(lines)
            labels = {"finish": "tool_calls", "conversation": number}
            record = pair(states[number], answer, uid=uid, at=at, **labels)
            lines.append(json.dumps(record))
            states[number] = [*states[number], answer, tool(f"seen {uid} " * 3, f"c{uid}")]
            oddity = chance.random()
            if oddity < 0.01:
                lines.append(lines[-1])
            elif oddity < 0.02:
                lines.append(lines[-1][: chance.randrange(20, 200)])
            elif oddity < 0.03:
                failed = {**record, "response": {"error": {"message": f"rate limit {uid}"}}}
                lines.append(json.dumps(failed))
            elif oddity < 0.04:
                del lines[-1]  # what goes on from it waits for it
    lines += [json.dumps(record) for record in make(1).records]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_sessions(folder, *, files=120):
    """A folder of Claude Code and Codex sessions, of which some are cut or hold bad lines."""
    folder.mkdir(parents=True)
    chance = random.Random(11)
    for number in range(files):
        make_session = claude_session if number % 3 else codex_session
        lines = make_session(f"s{number}", chance.randrange(2, 30))
        path = write_lines(folder / f"session-{number}.jsonl", lines)
        if number % 10 == 1:
            path.write_bytes(path.read_bytes()[:-20])
        if number % 10 == 2:
            path.write_bytes(path.read_bytes() + b'{"cut": "here\nno json at all\n')
    return folder


def claude_session(name, turns):
    shared = {"sessionId": name, "isSidechain": False, "cwd": "/garden", "version": "2.0.0"}
    lines, parent = [], None

    def add(kind, uuid, message):
        nonlocal parent
        stamp = AT.format(len(lines) // 2 % 60, len(lines))
        line = {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": stamp, **shared}
        lines.append({**line, "message": message})
        parent = uuid

    add("user", f"{name}-u", {"role": "user", "content": f"look after {name}"})
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"{name}-c{turn}", "name": "look", "input": {"at": turn}}
        usage = {"input_tokens": 10 + turn, "output_tokens": 5}
        answer = {"id": f"{name}-m{turn}", "model": "m", "role": "assistant", "content": [use]}
        add("assistant", f"{name}-a{turn}", {**answer, "stop_reason": "tool_use", "usage": usage})
        seen = {"type": "tool_result", "tool_use_id": use["id"], "content": f"seen {turn}"}
        add("user", f"{name}-r{turn}", {"role": "user", "content": [seen]})
    return lines


def codex_session(name, turns):
    lines = []

    def add(kind, **payload):
        stamp = AT.format(len(lines) // 2 % 60, len(lines))
        lines.append({"timestamp": stamp, "type": kind, "payload": payload})

    def say(role, kind, text):
        add("response_item", type="message", role=role, content=[{"type": kind, "text": text}])

    add("session_meta", id=name, timestamp=AT.format(0, 0), cwd="/garden", originator="o")
    add("turn_context", model="m", cwd="/garden")
    say("user", "input_text", f"look after {name}")
    for turn in range(turns):
        call = {"name": "look", "arguments": json.dumps({"at": turn}), "call_id": f"{name}-{turn}"}
        add("response_item", type="function_call", **call)
        add("response_item", type="function_call_output", call_id=call["call_id"], output="seen")
    say("assistant", "output_text", "done")
    return lines


# -- runs ----------------------------------------------------------------------------------------


def start(*arguments, **options):
    """Start a run; returns it when it begins. Options are those of Popen."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER), "ingest", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    first = process.stderr.readline()
    assert first == READY, first + process.stderr.read()
    return process


def finish(process):
    """Wait for a run; gives exit code, stdout, stderr."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def run(*arguments):
    """Run to the end, which must be a good one; gives the report and the seconds that it took."""
    process = start(*arguments, "--json")
    began = time.monotonic()
    code, out, err = finish(process)
    assert code == 0, err
    return json.loads(out), time.monotonic() - began


def kill_and_rerun(arguments, output, *, kills, seed, whole_s, sign=signal.SIGKILL):
    """Kill runs at random moments, then run to the end.

    Returns how many were killed; the others were through before their moment came.
    """
    chance, killed = random.Random(seed), 0
    for _ in range(kills):
        process = start(*arguments, "-o", output)
        time.sleep(chance.uniform(0, whole_s * 0.9))
        process.send_signal(sign)
        code, _, err = finish(process)
        assert code in (0, -sign, 128 + sign), err
        # Python itself complains where a parent is killed while its child starts
        assert "clawcli" not in err if sign == signal.SIGKILL else err == "" or code == 0
        killed += code != 0
        if table.exists(Path(output) / location.STEPS):
            read_all(output)
    run(*arguments, "-o", output)
    return killed


# -- what is the same ----------------------------------------------------------------------------


def read_all(output):
    """All tables of a data directory as sets of rows: steps whole, the others without counters."""
    place = location.parse(str(output))
    steps = table.read(place).to_pylist()
    uids = [row["step_uid"] for row in steps]
    assert len(uids) == len(set(uids))
    found = {"steps": {row["step_uid"]: row for row in steps}}
    if table.exists(place.rejects):
        found["rejects"] = _as_set(table.read(place, "rejects"))
    for folder in sorted((Path(output) / "sidecars").glob("*")):
        if table.exists(folder):
            rows = sidecars.read(place, folder.name).drop_columns(["sidecar_version"])
            found[folder.name] = _as_set(rows)
    return found


def _as_set(rows):
    return {json.dumps(row, sort_keys=True, default=str) for row in rows.to_pylist()}


def assert_same(found, wanted):
    """Compare what read_all gave, and name the first step and column that differ."""
    assert found["steps"].keys() == wanted["steps"].keys()
    for uid, row in wanted["steps"].items():
        differs = {
            n: (v, found["steps"][uid][n]) for n, v in row.items() if found["steps"][uid][n] != v
        }
        assert not differs, (uid, row["native_id"], differs)
    assert found.keys() == wanted.keys()
    for name in found.keys() - {"steps"}:
        assert found[name] == wanted[name], name


def strays(output):
    """Files of a data directory that are neither of a table nor claw's own: named as temporary."""
    known = {location.LOCK, location.RUNS, location.REDACTION_KEY}
    return [
        path
        for path in Path(output).rglob("*")
        if path.is_file()
        and path.suffix not in (".parquet", ".json", ".crc")
        and path.name not in known
        and path.name != "_last_checkpoint"
    ]


def num_commits(output):
    return table.open_table(Path(output) / location.STEPS).version() + 1


def unnamed(output):
    """Data files of the step table that no version names."""
    root = Path(output) / location.STEPS
    delta = table.open_table(root)
    named = {
        root / f.path
        for v in range(delta.version() + 1)
        for f in log.active(table.open_table(root, v))
    }
    return set(root.rglob("*.parquet")) - named
