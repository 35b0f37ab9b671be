"""A valid log of every format, and ways to damage it.

Whatever comes out of damaged() must leave ingest with fates that balance or with one sentence.
"""

import copy
import json

import test_anthropic_messages as anthropic
import test_atif as atif
import test_inspect_ai as inspect_ai
import test_mini_swe_agent as mini
import test_openai_chat as chat
import test_openhands_v0 as openhands_v0
import test_openhands_v1 as openhands_v1
import test_row_formats as row_formats
import test_swe_agent as swe
import test_tau_formats as tau_formats
from conftest import assistant, system, tau, tool, user
from test_litellm import payload
from test_session_formats import JUNK, claude_lines, codex_lines, openclaw_entries, places
from test_wire_formats import anthropic_records, chat_records, response_logs

TURNS = [
    system("s"),
    user("u"),
    assistant("", calls=[("c1", "f", '{"x": 1}')]),
    tool("r"),
    assistant("done"),
]


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def document(value):
    return json.dumps(value, indent=1).encode()


def valid_logs():
    """By the name of a format: the bytes of a log that it reads whole."""
    answered = inspect_ai.model([inspect_ai.asked("u")], inspect_ai.said("a"))
    return {
        "openai_chat": lines(chat_records()),
        "openai_stream": lines(chat.STREAM),
        "anthropic_messages": lines(anthropic_records()),
        "anthropic_stream": lines(anthropic.STREAM),
        "openai_responses": lines(response_logs()[0]),
        "litellm": lines([payload(), payload(messages="[]")]),
        "messages": lines([{"messages": TURNS}, {"messages": TURNS, "reward": 1.0}]),
        "sharegpt": lines(
            [{"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}]
        ),
        "verifiers": lines(
            [row_formats.rollout(), row_formats.traced([user("u")], assistant("a"))]
        ),
        "tau_bench": tau([(1, 0, 1.0, TURNS), (2, 0, 0.0, TURNS)]).encode(),
        "tau2": document(
            tau_formats.results(
                tau_formats.simulation([tau_formats.GREETING, user("u"), assistant("a")])
            )
        ),
        "claude_code": lines(claude_lines()),
        "codex": lines(codex_lines()),
        "openclaw": lines(openclaw_entries()),
        "atif": document(atif.document(atif.step("user", "u"), atif.step("agent", "a"))),
        "swe_agent": document(
            swe.traj(
                [swe.step("r", "ls", "o")],
                [swe.SYSTEM, swe.TASK, swe.answer("r", "ls"), swe.shown("o")],
            )
        ),
        "mini_swe_agent": document(
            mini.document(system("S"), user("u"), assistant("a"), user("x"), assistant("b"))
        ),
        "openhands_v0": lines(
            [
                {
                    "instance_id": "i-1",
                    "history": [
                        openhands_v0.SYSTEM,
                        openhands_v0.user(1, "u"),
                        *openhands_v0.one_turn(2, "a"),
                        *openhands_v0.one_turn(4, "b"),
                    ],
                }
            ]
        ),
        "openhands_v1": lines(
            [openhands_v1.prompt(), openhands_v1.user("u", "x"), *openhands_v1.turn(1)]
        ),
        "inspect_ai": document(
            {
                "version": 2,
                "status": "success",
                "eval": inspect_ai.EVAL,
                "samples": [inspect_ai.sample([answered])],
            }
        ),
    }


def damaged(data, chance, others):
    """Damage a log once to five times; others are logs whose bytes may get into it."""
    for _ in range(chance.randrange(1, 6)):
        data = chance.choice(DAMAGES)(data, chance, others)
    return data


def flip_bits(data, chance, _):
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4) if data else 0):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut_off(data, chance, _):
    return data[: chance.randrange(len(data) + 1)]


def cut_out(data, chance, _):
    begin, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:begin] + data[end:]


def insert_bytes(data, chance, _):
    odd = [
        b"\0" * 700,
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\n",
        b"}{",
        b"[",
        b'"',
        b"\\",
        b"NaN",
        b"\r",
    ]
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(odd) + data[place:]


def splice(data, chance, others):
    other = chance.choice(others)
    place = chance.randrange(len(data) + 1)
    return data[:place] + other[chance.randrange(len(other)) :]


def repeat_line(data, chance, _):
    listed = data.splitlines(True)
    if listed:
        listed.insert(chance.randrange(len(listed) + 1), chance.choice(listed))
    return b"".join(listed)


def mix_lines(data, chance, others):
    listed = data.splitlines(True) + chance.choice(others).splitlines(True)
    chance.shuffle(listed)
    return b"".join(listed)


def swap_types(data, chance, _):
    """Put junk in the place of some value of one record."""
    records = _decoded(data)
    inside = list(places(records))
    if not inside:
        return data
    *above, key = chance.choice(inside)
    inner = records
    for step in above:
        inner = inner[step]
    inner[key] = copy.deepcopy(chance.choice(JUNK))
    return lines(records)


def _decoded(data):
    """The JSON values of a log, be it lines or one document."""
    try:
        return [json.loads(data)]
    except (ValueError, RecursionError):
        pass
    records = []
    for line in data.splitlines():
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return records


DAMAGES = (
    flip_bits,
    cut_off,
    cut_out,
    insert_bytes,
    splice,
    repeat_line,
    mix_lines,
    swap_types,
    swap_types,
    swap_types,
)
