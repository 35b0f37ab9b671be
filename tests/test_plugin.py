"""--format: formats by name, and formats that a user brings along."""

import json
import textwrap

import pytest

from clawcli.errors import UsageError
from clawcli.ingest import formats
from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import messages, plugin

PLUGIN = '''\
"""Logs of an invented bot: {"prompt": [[who, text], ...], "answer": text, "ok": true}."""

import json

from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.fates import Fate
from clawcli.ingest.conversations import conversation, digested
from clawcli.messages import Message

NAME = "invented_bot"
ROLES = {"person": "user", "bot": "assistant"}


def why_not(record):
    return None if "answer" in record else "no answer"


def calls(raw, context):
    record = json.loads(raw)
    if not record["answer"]:
        raise Fate("failed_call", "no_answer", "the bot said nothing")
    said = [digested(Message(ROLES[who], text)) for who, text in record["prompt"]]
    action = digested(Message("assistant", record["answer"]))
    reward = {True: 1.0, False: 0.0}.get(record.get("ok"))
    return [Call(conversation(said), [Choice(action, finish_reason="stop")], reward=reward)]
'''


def write(tmp_path, text, name="my_format.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_load_plugin_of_thirty_lines_reads_an_invented_log(tmp_path):
    assert len(PLUGIN.splitlines()) <= 30
    module = plugin.load(write(tmp_path, PLUGIN))
    record = {"prompt": [["person", "hi"], ["bot", "yes?"], ["person", "2+2"]], "answer": "4"}
    raw = json.dumps({**record, "ok": True}).encode()
    (call,) = module.calls(raw, Context())
    assert (module.NAME, module.why_not(record)) == ("invented_bot", None)
    assert [i.message.role for i in call.state.after()] == ["user", "assistant", "user"]
    assert (call.choices[0].action.message.content, call.reward) == ("4", 1.0)
    with pytest.raises(Fate, match="said nothing"):
        module.calls(json.dumps({**record, "answer": ""}).encode(), Context())


def test_load_plugin_without_why_not_takes_every_record(tmp_path):
    path = write(tmp_path, "NAME = 'x'\ndef session(records, context): ...\n")
    assert plugin.load(path).why_not({}) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def calls(raw, context): ...", "it has no NAME"),
        ("NAME = 'My Format'\ndef calls(raw, context): ...", "not in snake_case"),
        ("NAME = 'x/../y'\ndef calls(raw, context): ...", "not in snake_case"),
        ("NAME = 'x'", "neither calls nor session"),
        ("NAME = 'x'\ncalls = 1", "neither calls nor session"),
        (
            "NAME = 'x'\ndef calls(raw, context): ...\ndef session(records, context): ...",
            "both calls and session",
        ),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("def calls(", "SyntaxError"),
    ],
)
def test_load_plugin_that_is_no_format_says_what_it_lacks(tmp_path, text, problem):
    with pytest.raises(UsageError) as caught:
        plugin.load(write(tmp_path, text))
    assert problem in str(caught.value)
    assert "my_format.py" in str(caught.value)


def test_load_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        plugin.load(str(tmp_path / "none.py"))


def test_load_file_of_another_kind_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no Python file"):
        plugin.load(write(tmp_path, "x", "format.txt"))


def test_load_two_plugins_called_alike_stay_apart(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = plugin.load(write(tmp_path / "a", "NAME = 'one'\ndef calls(raw, context): ...\n"))
    two = plugin.load(write(tmp_path / "b", "NAME = 'two'\ndef calls(raw, context): ...\n"))
    assert (one.NAME, two.NAME) == ("one", "two")


def test_named_finds_each_format_and_names_the_nearest():
    assert plugin.named("messages") is messages
    assert all(plugin.named(module.NAME) is module for module in formats.FORMATS)
    with pytest.raises(UsageError, match="Did you mean messages"):
        plugin.named("message")
