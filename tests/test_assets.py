"""The tiny tokenizer that ships with the package, and its chat template."""

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import clawcli

TINY = Path(clawcli.__file__).parent / "assets" / "tiny"
SAMPLE_DATA = Path(__file__).parents[1] / "sample_data"
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Größe < 1 & <b>",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    for name in ("measure", "count")
]
# every kind of message there is, with edges that a template may be tempted to trim
CONVERSATION = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "\n How tall? "},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": " Two calls.\n",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "measure", "arguments": "{ }"}},
            {
                "id": "2",
                "type": "function",
                "function": {"name": "count", "arguments": '{"n":1.0}'},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": " 3 m\n"},
    {"role": "tool", "tool_call_id": "2", "content": ""},
    {
        "role": "assistant",
        "content": "One more. ",
        "tool_calls": [
            {"id": "3", "type": "function", "function": {"name": "count", "arguments": "broken {"}}
        ],
    },
    {"role": "tool", "tool_call_id": "3", "content": "4"},
    {"role": "assistant", "content": " 3 m, 4 times.\n"},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def auto_tokenizer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(TINY)


def render(tokenizer, messages, *, tools=None, prompt=False):
    return tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=prompt
    )


def test_tokenizer_vocabulary_is_dense_and_every_id_decodes():
    vocabulary = TOKENIZER.get_vocab(with_added_tokens=True)
    assert sorted(vocabulary.values()) == list(range(1024))
    assert all(TOKENIZER.decode([i], skip_special_tokens=False) for i in range(1024))


def test_tokenizer_vocabulary_holds_all_bytes():
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(ByteLevel.alphabet()) <= TOKENIZER.get_vocab().keys()
    assert len(ByteLevel.alphabet()) == 256


@given(st.text())
def test_tokenizer_any_text_comes_back_unchanged(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_tokenizer_digits_stand_alone():
    assert TOKENIZER.encode("in 2026").tokens[-4:] == ["2", "0", "2", "6"]


def test_tokenizer_special_tokens_split_text():
    assert TOKENIZER.encode("a<|im_end|>\n").tokens == ["a", "<|im_end|>", "Ċ"]


def test_tokenizer_unseen_english_takes_few_tokens(monkeypatch):
    monkeypatch.syspath_prepend(SAMPLE_DATA)
    from agent_tasks import SYSTEM, TASKS

    turns = {turn.text for task in TASKS for attempt in task.attempts for turn in attempt}
    text = "\n".join([SYSTEM, *(task.opening for task in TASKS), *sorted(turns)])
    assert len(text) / len(TOKENIZER.encode(text).ids) > 2.5


def test_tokenizer_trained_again_gives_the_shipped_bytes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SAMPLE_DATA)
    import make_tiny_tokenizer

    make_tiny_tokenizer.write(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (TINY / path.name).read_bytes(), path.name


def test_assets_are_small():
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 100_000


def test_auto_tokenizer_knows_the_turn_end(auto_tokenizer):
    assert len(auto_tokenizer) == 1024
    assert auto_tokenizer.eos_token == "<|im_end|>"
    assert auto_tokenizer.pad_token == "<|endoftext|>"


def test_template_prints_every_kind_of_message_exactly(auto_tokenizer):
    tools = [json.dumps(tool, ensure_ascii=False) for tool in TOOLS]
    assert render(auto_tokenizer, CONVERSATION, tools=TOOLS, prompt=True) == "".join(
        [
            "<|im_start|>system\n Be brief.\n\n\n# Tools\n"
            "One line describes one tool. To call a tool, write\n"
            '<tool_call>name {"argument": value}</tool_call>\n'
            f"{tools[0]}\n{tools[1]}\n<|im_end|>\n",
            "<|im_start|>user\n\n How tall? <|im_end|>\n",
            "<|im_start|>assistant\n<think> Two calls.\n</think>\n"
            "<tool_call>measure { }</tool_call>\n"
            '<tool_call>count {"n":1.0}</tool_call><|im_end|>\n',
            "<|im_start|>tool\n 3 m\n<|im_end|>\n",
            "<|im_start|>tool\n<|im_end|>\n",
            "<|im_start|>assistant\nOne more. \n<tool_call>count broken {</tool_call><|im_end|>\n",
            "<|im_start|>tool\n4<|im_end|>\n",
            "<|im_start|>assistant\n 3 m, 4 times.\n<|im_end|>\n",
            "<|im_start|>user\nThanks<|im_end|>\n",
            "<|im_start|>assistant\n",
        ]
    )


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("leading", [0, 1])
def test_template_longer_conversation_begins_with_the_shorter(auto_tokenizer, tools, leading):
    messages = CONVERSATION[leading:]
    whole = render(auto_tokenizer, messages, tools=tools)
    for end in range(1, len(messages)):
        assistant = messages[end]["role"] == "assistant"
        assert whole.startswith(
            render(auto_tokenizer, messages[:end], tools=tools, prompt=assistant)
        )


def test_template_tools_without_system_text_open_a_system_turn(auto_tokenizer):
    text = render(auto_tokenizer, CONVERSATION[1:2], tools=TOOLS)
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert text.endswith("<|im_end|>\n<|im_start|>user\n\n How tall? <|im_end|>\n")


def test_template_text_parts_are_joined(auto_tokenizer):
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    text = render(auto_tokenizer, [{"role": "user", "content": parts}])
    assert text == "<|im_start|>user\na b<|im_end|>\n"


def test_template_part_that_is_no_text_is_refused(auto_tokenizer):
    from jinja2 import TemplateError

    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(TemplateError, match="image_url"):
        render(auto_tokenizer, [{"role": "user", "content": parts}])
