import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawcli.messages import (
    EMPTY_CHAIN,
    Message,
    ToolCall,
    content_and_parts,
    digest,
    extend,
    hash128,
    loose_digest,
    text_of,
)


def test_content_null_empty_and_no_parts_are_one_text():
    assert {content_and_parts(c) for c in (None, "", [])} == {("", None)}


def test_content_one_text_part_becomes_its_text():
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    assert content_and_parts([part]) == ("a", None)


def test_content_image_stays_parts():
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert content_and_parts(parts) == (None, json.dumps(parts, separators=(",", ":")))


def test_digest_parts_that_are_all_text_equal_their_joined_text():
    parts = json.dumps([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert digest(Message("user", parts=parts)) == digest(Message("user", content="ab"))


def test_digest_cache_markers_and_nulls_in_parts_do_not_count():
    plain = [{"type": "image", "source": {"data": "x"}}]
    marked = [{"source": {"data": "x", "id": None}, "type": "image", "cache_control": {}}]
    one, two = (Message("user", parts=json.dumps(p)) for p in (plain, marked))
    assert digest(one) == digest(two)


@pytest.mark.parametrize(
    "other",
    [
        Message("assistant", content="b"),
        Message("user", content="a"),
        Message("assistant", content="a", reasoning="r"),
        Message("assistant", content="a", tool_calls=(ToolCall("1", "f", "{}", True),)),
    ],
)
def test_digest_what_counts_makes_a_difference(other):
    assert digest(other) != digest(Message("assistant", content="a"))


def test_digest_ids_and_names_of_results_do_not_count():
    one = Message("tool", content="r", tool_call_id="1", name="f")
    two = Message("tool", content="r", tool_call_id="2")
    assert digest(one) == digest(two)


def test_digest_argument_bytes_count():
    calls = [(ToolCall("1", "f", text, True),) for text in ('{"a":1}', '{"a": 1}')]
    assert len({digest(Message("assistant", "", tool_calls=c)) for c in calls}) == 2


def test_loose_digest_ignores_reasoning_and_a_leading_think_block():
    plain = Message("assistant", content="a")
    thinking = Message("assistant", content="<think>\nr\n</think>\n\na")
    reasoning = Message("assistant", content="a", reasoning="r")
    assert loose_digest(plain) == loose_digest(thinking) == loose_digest(reasoning)
    assert loose_digest(plain) != loose_digest(Message("assistant", content="b"))


def test_text_of_parts_with_media_is_null():
    assert text_of(Message("user", parts='[{"type":"image"}]')) is None


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=6))
def test_extend_order_and_length_count(digests):
    chain = EMPTY_CHAIN
    seen = {chain}
    for value in digests:
        chain = extend(chain, value)
        assert chain not in seen
        seen.add(chain)


def test_hash128_is_stable_over_versions():
    # uids are stored: this value may never change
    assert hash128("openai_chat", ["s", 1, 2], 0, b"x") == "dc9c107424a98a83d5314462fe8ae43b"
