import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawcli.ingest.formats import streams


def chunk(delta=None, *, index=0, finish=None, uid="r1", **extra):
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return {"id": uid, "object": "chat.completion.chunk", "choices": choices, **extra}


def call_piece(index=0, uid=None, name=None, arguments=None):
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": uid, "function": {k: v for k, v in function.items() if v}}


def message(*chunks):
    (choice,) = streams.chat_response(chunks)["choices"]
    return choice["message"]


def sse(events):
    return "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events)


EVENTS = [{"a": 1}, {"b": "\u2028 two\u0085 lines"}]


@pytest.mark.parametrize(
    "logged",
    [
        sse(EVENTS) + "data: [DONE]\n\n",
        sse(EVENTS).replace("\n", "\r\n"),
        sse(EVENTS).replace("data: ", "data:"),
        "\n".join(json.dumps(event, ensure_ascii=False) for event in EVENTS),
        EVENTS,
        [f"data: {json.dumps(event)}" for event in EVENTS],
        ": a comment\n" + sse(EVENTS),
    ],
)
def test_parse_reads_every_way_in_which_streams_are_logged(logged):
    assert streams.parse(logged) == streams.Stream(EVENTS, is_damaged=False)


@pytest.mark.parametrize(
    "logged", [None, 7, {}, [], "", "an answer", [1], ["a", 1], "data: [DONE]"]
)
def test_parse_what_is_no_stream_is_none(logged):
    assert streams.parse(logged) is None


@pytest.mark.parametrize("line", ['data: {"a": ', "data: 7", "data: " + "[" * 100_000])
def test_parse_damaged_line_is_told_and_the_rest_kept(line):
    assert streams.parse(sse(EVENTS[:1]) + line) == streams.Stream(EVENTS[:1], is_damaged=True)


def test_chat_response_joins_texts_and_takes_what_is_said_once():
    found = streams.chat_response(
        [
            {"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": [1]},
            chunk({"role": "assistant", "content": None, "reasoning_content": "th"}, created=5),
            chunk({"reasoning_content": "ink", "content": "a"}, model="m", obfuscation="xx"),
            chunk({"content": "b"}, usage={"completion_tokens": 1}),
            chunk({}, finish="stop"),
            chunk(usage={"completion_tokens": 2}),
        ]
    )
    said = {"role": "assistant", "reasoning_content": "think", "content": "ab"}
    assert found == {
        "id": "r1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "prompt_filter_results": [1],
        "usage": {"completion_tokens": 2},
        "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
    }


def test_chat_response_same_index_twice_in_the_first_chunk_is_one_call():
    found = message(
        chunk({"tool_calls": [call_piece(0, "c0", "f"), call_piece(0, arguments='{"a"')]}),
        chunk({"tool_calls": [call_piece(1, "c1", "g", "{}")]}),
        chunk({"tool_calls": [call_piece(0, arguments=": 1}")]}),
    )
    assert [(c["id"], c["function"]) for c in found["tool_calls"]] == [
        ("c0", {"name": "f", "arguments": '{"a": 1}'}),
        ("c1", {"name": "g", "arguments": "{}"}),
    ]


def test_chat_response_calls_that_are_all_numbered_0_stay_apart():
    found = message(
        chunk({"tool_calls": [call_piece(0, "c0", "f", "{}")]}),
        chunk({"tool_calls": [call_piece(0, "c1", "f", '{"b":')]}),
        chunk({"tool_calls": [call_piece(0, arguments="2}")]}),
    )
    assert [c["function"]["arguments"] for c in found["tool_calls"]] == ["{}", '{"b":2}']


def test_chat_response_calls_without_index_are_told_apart_by_id():
    pieces = [call_piece(None, "c0", "f", "{"), call_piece(None, None, None, "}")]
    found = message(*(chunk({"tool_calls": [p]}) for p in [*pieces, call_piece(None, "c1", "g")]))
    assert [(c["id"], c["function"].get("arguments")) for c in found["tool_calls"]] == [
        ("c0", "{}"),
        ("c1", None),
    ]


def test_chat_response_calls_without_ids_are_told_apart_by_index():
    pieces = [call_piece(1, None, "g", "{"), call_piece(0, None, "f", "[]"), call_piece(1, None)]
    pieces[2]["function"] = {"arguments": "}"}
    found = message(*(chunk({"tool_calls": [piece]}) for piece in pieces))
    assert [c["function"] for c in found["tool_calls"]] == [
        {"name": "g", "arguments": "{}"},
        {"name": "f", "arguments": "[]"},
    ]


def test_chat_response_name_and_id_in_every_chunk_are_said_once():
    found = message(*(chunk({"tool_calls": [call_piece(0, "c0", "f", a)]}) for a in ("{", "}")))
    assert found["tool_calls"] == [{"id": "c0", "function": {"name": "f", "arguments": "{}"}}]


def test_chat_response_of_what_changes_the_last_stands_and_of_what_names_the_first():
    (choice,) = streams.chat_response(
        [
            chunk({"role": "assistant", "score": 1, "id": "a"}, finish="stop"),
            chunk({"role": "tool", "score": 2, "id": "b"}, finish="length"),
        ]
    )["choices"]
    assert choice["message"] == {"role": "assistant", "score": 2, "id": "a"}
    assert choice["finish_reason"] == "length"


def test_chat_response_legacy_function_call_is_joined():
    found = message(
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
    )
    assert found["function_call"] == {"name": "f", "arguments": "{}"}


def test_chat_response_reasoning_details_and_thinking_blocks_are_joined_entry_by_entry():
    found = message(
        chunk({"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "a"}]}),
        chunk({"reasoning_details": [{"index": 0, "text": "b"}, {"index": 1, "text": "c"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "x"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "y"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "signature": "s"}]}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "z"}]}),
    )
    assert found["reasoning_details"] == [{"type": "reasoning.text", "text": "ab"}, {"text": "c"}]
    assert found["thinking_blocks"] == [
        {"type": "thinking", "thinking": "xy", "signature": "s"},
        {"type": "thinking", "thinking": "z"},
    ]


def test_chat_response_ids_and_logprobs_of_all_chunks_are_listed():
    chunks = [chunk({"content": "a"}), chunk({"content": "b"})]
    for number, each in enumerate(chunks):
        each["choices"][0] |= {
            "token_ids": [number],
            "logprobs": {"content": [{"logprob": number}]},
        }
    (choice,) = streams.chat_response(chunks)["choices"]
    assert choice["token_ids"] == [0, 1]
    assert choice["logprobs"]["content"] == [{"logprob": 0}, {"logprob": 1}]


def test_chat_response_content_in_parts_and_in_text_is_kept_in_order():
    part = {"type": "thinking", "thinking": []}
    found = message(*(chunk({"content": each}) for each in ("a", [part], "b", "c", [part])))
    text_a, text_bc = ({"type": "text", "text": text} for text in ("a", "bc"))
    assert found["content"] == [text_a, part, text_bc, part]


def test_chat_response_a_long_stream_takes_time_by_its_length_alone():
    # joining at every chunk would copy 10^11 characters and hit the time limit of the test
    found = message(*(chunk({"content": "four"}) for _ in range(200_000)))
    assert len(found["content"]) == 800_000


def numbers(groups):
    return [[number for number, _ in group] for group in groups]


def test_chat_groups_interleaved_answers_are_told_apart_by_id():
    chunks = [chunk({"content": "a"}, uid=uid) for uid in ("x", "y", "x", "y")]
    assert numbers(streams.chat_groups(enumerate(chunks))) == [[0, 2], [1, 3]]


def test_chat_groups_empty_first_chunk_belongs_to_the_answer_that_follows():
    empty = {"id": "", "choices": [], "prompt_filter_results": []}
    chunks = [empty, chunk({"content": "a"}, uid="x"), empty, chunk({"content": "b"}, uid="y")]
    assert numbers(streams.chat_groups(enumerate(chunks))) == [[0, 1], [2, 3]]


def test_chat_groups_filter_results_with_an_id_belong_to_it():
    late = chunk(uid="x", prompt_filter_results=[1])
    chunks = [chunk({"content": "a"}, uid="x"), chunk({"content": "b"}, uid="y"), late]
    assert numbers(streams.chat_groups(enumerate(chunks))) == [[0, 2], [1]]


def test_chat_groups_one_id_for_all_answers_is_cut_where_an_ended_choice_speaks():
    chunks = [
        chunk({"role": "assistant", "content": "a"}),
        chunk({}, finish="stop"),
        chunk(usage={"prompt_tokens": 1}),
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "b"}),
    ]
    # a role alone may come with the last chunk too, so it begins nothing
    assert numbers(streams.chat_groups(enumerate(chunks))) == [[0, 1, 2, 3], [4]]


def test_chat_groups_chunks_without_ids_follow_the_answer_at_hand():
    chunks = [chunk({"content": "a"}, uid=None), chunk({}, finish="stop", uid=None), chunk(uid="")]
    assert numbers(streams.chat_groups(enumerate(chunks))) == [[0, 1, 2]]


def test_chat_groups_stream_that_never_began_is_a_group():
    assert numbers(streams.chat_groups([(4, {"choices": []})])) == [[4]]


@given(st.lists(st.text(max_size=4), min_size=1, max_size=9), st.lists(st.text(max_size=4)))
def test_chat_response_however_cut_gives_the_same_text(texts, arguments):
    found = message(
        *(chunk({"content": text}) for text in texts),
        chunk({"tool_calls": [call_piece(0, "c", "f")]}),
        *(chunk({"tool_calls": [call_piece(0, arguments=a)]}) for a in arguments),
    )
    assert found.get("content") == "".join(texts)
    assert found["tool_calls"][0]["function"].get("arguments", "") == "".join(arguments)
