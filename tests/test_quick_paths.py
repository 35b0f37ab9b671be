"""Quick paths beside general ones: what repeats and is not parsed again, common records, places."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_log import make

from clawcli.ingest import placing, repeats
from clawcli.ingest.cache import MessageCache
from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import openai_chat, plain_chat
from clawcli.ingest.stepgraph import Request, Step

BLOCK = 24
"""Bytes of a block in these tests, so that short records have many."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(repeats, "_BLOCK_BYTES", BLOCK)


def told(call):
    """All that a call says, with the messages of its state."""
    fields = {name: getattr(call, name) for name in call.__struct_fields__}
    fields["state"] = [list_of(item) for item in call.state.after()], call.state.exact
    fields["choices"] = [
        {
            **{name: getattr(choice, name) for name in choice.__struct_fields__},
            "action": list_of(choice.action),
        }
        for choice in call.choices
    ]
    return fields


def list_of(item):
    # is_plain says by which path it was decoded first
    return [
        getattr(item, name)
        for name in item.__struct_fields__
        if name not in ("is_plain", "message")
    ], msgspec.to_builtins(item.message)


def outcome(raw, context):
    try:
        return [told(call) for call in openai_chat.calls(raw, context)]
    except Fate as fate:
        return fate.fate, fate.reason
    except msgspec.DecodeError:
        return "no JSON"


def without_repeats():
    context = Context()
    context.messages.shorten = lambda raw: None
    return context


TEXTS = ("ab", '"messages": [', '\\"messages\\": [{', "x" * 30, "é🙂" * 9, "]}, {", "")
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.sampled_from(TEXTS),
)
SPACES = st.sampled_from(["", " ", "\n", " \t\r\n "])


@st.composite
def logs(draw):
    """Records that go on from each other, or fork, in several spellings."""
    histories = [draw(st.lists(MESSAGES, max_size=4))]
    records = []
    for _ in range(draw(st.integers(1, 8))):
        before = draw(st.sampled_from(histories))
        history = before[: draw(st.integers(0, len(before)))] if draw(st.booleans()) else before
        history = history + draw(st.lists(MESSAGES, max_size=4))
        histories.append(history)
        space = draw(SPACES)
        listed = f"{space},{space}".join(json.dumps(m, ensure_ascii=False) for m in history)
        first = draw(st.sampled_from(["", '"model": "m", ', '"messages": [], ', '"tools": null, ']))
        last = draw(st.sampled_from(["", ', "tools": []', ', "messages": []', ', "top_p": 0.5']))
        key = draw(st.sampled_from(['"messages"', '"messages"', '"x\\"messages"']))
        answer = '{"choices": [{"message": {"role": "assistant", "content": "yes"}}]}'
        line = (
            f'{{"request": {{{first}{key}:{space}[{space}{listed}{space}]{last}}}, '
            f'"response": {answer}}}'
        )
        damage = draw(st.sampled_from([None, None, None, "cut", "bytes"]))
        raw = line.encode()
        if damage == "cut":
            raw = raw[: draw(st.integers(1, len(raw)))]
        elif damage == "bytes":
            at = draw(st.integers(0, len(raw) - 1))
            raw = raw[:at] + b"\xff" + raw[at + 1 :]
        records.append(raw)
    return records


@settings(max_examples=400, deadline=None)
@given(logs())
def test_leaving_out_what_repeats_changes_no_call(log):
    cut, whole = Context(), without_repeats()
    for raw in log:
        assert outcome(raw, cut) == outcome(raw, whole)


def test_a_growing_request_is_cut_down_to_what_is_new():
    cache, history, seen = Context(), [], []
    decode = plain_chat._decode
    for turn in range(20):
        history.append({"role": "user", "content": f"turn {turn} " + "word " * 20})
        record = {"request": {"messages": history}, "response": {"choices": [answer(turn)]}}
        raw = json.dumps(record).encode()
        cut = cache.messages.shorten(raw)
        seen.append(len(cut.json))
        # beside the new one: the mark, and the one before, in which no block ended behind it
        assert len(decode(cut.json).request.messages) == min(turn, 2) + 1
        openai_chat.calls(raw, cache)
    assert max(seen[2:]) < 2 * seen[0]


def answer(turn):
    return {"message": {"role": "assistant", "content": f"answer {turn}"}}


def test_an_array_of_another_key_is_not_taken_for_the_request():
    context = Context()
    listed = json.dumps([{"role": "user", "content": "word " * 20}] * 3)
    rest = '"response": {"choices": [{"message": {"role": "assistant", "content": "a"}}]}'
    openai_chat.calls(f'{{"request": {{"messages": {listed}}}, {rest}}}'.encode(), context)
    shadowed = (
        f'{{"request": {{"messages": {listed}, "messages": [{{"role": "user", "content": "b"}}]}}, '
        f"{rest}}}"
    ).encode()
    assert context.messages.shorten(shadowed).prefix is not None
    (call,) = openai_chat.calls(shadowed, context)
    assert [item.message.content for item in call.state.after()] == ["b"]


def test_what_is_forgotten_is_parsed_again(monkeypatch):
    monkeypatch.setattr(MessageCache, "_PLACES_BYTES", 2_000)
    cut, whole = Context(), without_repeats()
    for raw in growing(12) * 2:
        assert outcome(raw, cut) == outcome(raw, whole)


def growing(turns):
    history, found = [{"role": "system", "content": "Be brief."}], []
    for turn in range(turns):
        history.append({"role": "user", "content": f"{turn} " + "word " * 20})
        record = {"request": {"messages": history}, "response": {"choices": [answer(turn)]}}
        found.append(json.dumps(record).encode())
    return found


PLAIN = [json.dumps(record).encode() for record in make(3).records]
"""Some are failed calls, and some say more than the quick path reads: run and turn do."""


def stripped(raw):
    record = json.loads(raw)
    return json.dumps({k: v for k, v in record.items() if k not in ("run", "turn")}).encode()


def test_the_quick_path_of_chat_gives_the_calls_of_the_general_one(monkeypatch):
    raws = [stripped(raw) for raw in PLAIN]
    raws += growing(6)
    quick = Context()
    taken = [plain_chat.call_of(raw, quick) for raw in raws]
    assert sum(call is not None for call in taken) > 80
    monkeypatch.setattr(plain_chat, "call_of", lambda raw, context: None)
    general = Context()
    for raw, call in zip(raws, taken, strict=True):
        if call is not None:
            assert [told(call)] == outcome(raw, general)


REWARDS = st.sampled_from([None, -1.0, 0.0, 0.5])
TIMES = st.sampled_from([None, 0, 86_400_000_001, -5, 1_700_000_000_000_000])
LONE = st.builds(
    Request,
    depth=st.integers(0, 2),
    state_hash=st.sampled_from([b"a" * 16, b"b" * 16]),
    system=st.sampled_from([b"", b"s" * 16]),
    tools=st.sampled_from([b"", b"t" * 16]),
    log_format=st.sampled_from(["one", "other"]),
    started_us=TIMES,
    ended_us=TIMES,
    task_id=st.sampled_from([None, "task"]),
    trial=st.sampled_from([None, 2]),
    agent=st.sampled_from([None, "agent"]),
    trajectory_reward=REWARDS,
    reward=REWARDS,
    loss_weight=st.sampled_from([1.0, 0.25]),
    parent_trajectory=st.sampled_from([None, "p" * 32]),
    kind=st.sampled_from([None, "subagent"]),
)


@given(LONE)
def test_the_quick_placing_of_a_single_call_is_that_of_trees(request):
    placed = []
    for is_alone in (placing._is_alone, lambda step: False):
        step = Step("u" * 32, request, 0, b"n" * 16, b"n" * 16)
        request.choices = [step]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(placing, "_is_alone", is_alone)
            assert placing.place([step]) == [step]
        placed.append((step.placed.values(), step.latest))
    assert placed[0] == placed[1]
