import json

from clawcli.ingest.conversations import digested
from clawcli.ingest.formats import blocks


def tool_use(call_id, arguments, **extra):
    return {"type": "tool_use", "id": call_id, "name": "run", "input": arguments, **extra}


def test_user_turn_gives_a_tool_message_per_result_and_then_one_user_message():
    found = blocks.to_messages(
        "user",
        [
            {"type": "text", "text": "and "},
            {"type": "tool_result", "tool_use_id": "b", "content": "2"},
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]},
            {"type": "text", "text": "now?"},
        ],
    )
    assert [(m.role, m.tool_call_id, m.content) for m in found] == [
        ("tool", "b", "2"),
        ("tool", "a", "1"),
        ("user", None, None),
    ]
    assert [part["text"] for part in json.loads(found[2].parts)] == ["and ", "now?"]


def test_content_of_every_shape_gives_a_message():
    for content, text in (("hi", "hi"), (None, ""), ([], ""), ({"type": "text", "text": "x"}, "x")):
        assert [m.content for m in blocks.to_messages("user", content)] == [text]
    odd = blocks.to_messages("user", [7, "b", {"type": "image", "source": {"data": "AA"}}])
    assert json.loads(odd[0].parts) == [7, "b", {"type": "image", "source": {"data": "AA"}}]


def test_action_joins_text_thoughts_and_calls_with_sorted_arguments():
    action = blocks.to_action(
        [
            {"type": "thinking", "thinking": "first"},
            {"type": "thinking", "thinking": "second"},
            {"type": "text", "text": "done"},
            tool_use("c1", {"b": 1, "a": "é"}),
            tool_use("c2", {}),
        ]
    )
    assert action.message.content == "done"
    assert action.message.reasoning == "first\n\nsecond"
    calls = [(c.id, c.name, c.arguments) for c in action.message.tool_calls]
    assert calls == [("c1", "run", '{"a": "é", "b": 1}'), ("c2", "run", "{}")]
    assert action.warnings == []
    assert action.metadata == {}


def test_action_hidden_thought_is_warned_about_and_its_signature_kept():
    action = blocks.to_action(
        [
            {"type": "thinking", "thinking": "seen", "signature": "s1"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "done"},
        ]
    )
    assert action.message.reasoning == "seen"
    assert action.warnings == ["reasoning_hidden"]
    assert action.metadata["blocks"] == [
        {"type": "thinking", "signature": "s1"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text"},
    ]


def test_action_server_tools_stay_in_the_content_where_they_stood():
    parts = [
        {"type": "text", "text": "let me see", "citations": [1]},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    ]
    action = blocks.to_action([*parts, tool_use("c", {})])
    assert json.loads(action.message.parts) == parts
    assert [call.id for call in action.message.tool_calls] == ["c"]
    assert action.metadata == {}


def test_action_input_that_is_no_object_is_warned_about():
    assert blocks.to_action([tool_use("c", "{broken")]).warnings == ["arguments_invalid"]


def test_leftovers_keep_what_a_message_does_not_hold():
    failed = {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}
    assert blocks.leftovers([failed]) == [{"type": "tool_result", "is_error": True}]
    assert blocks.leftovers([failed | {"is_error": False}]) is None
    cited = [{"type": "text", "text": "so", "citations": ["p1"]}]
    assert blocks.leftovers(cited) == [{"type": "text", "citations": ["p1"]}]
    assert blocks.leftovers([*cited, tool_use("c", {})]) == [
        *blocks.leftovers(cited),
        {"type": "tool_use"},
    ]
    called = [tool_use("c", {}, caller={"type": "direct"})]
    assert blocks.leftovers(called) == [{"type": "tool_use", "caller": {"type": "direct"}}]


def test_leftovers_keep_an_unusual_order_of_blocks():
    usual = [
        {"type": "thinking", "thinking": "a"},
        {"type": "text", "text": "b"},
        tool_use("c", {}),
    ]
    assert blocks.leftovers(usual) is None
    unusual = [usual[2], usual[0]]
    assert blocks.leftovers(unusual) == [{"type": "tool_use"}, {"type": "thinking"}]


def test_cache_markers_do_not_count_for_equality():
    plain = [{"type": "text", "text": "a"}, {"type": "image", "source": {"data": "AA"}}]
    marked = [part | {"cache_control": {"type": "ephemeral"}} for part in plain]
    one, other = (digested(blocks.to_messages("user", c)[0]) for c in (plain, marked))
    assert one.exact == other.exact
