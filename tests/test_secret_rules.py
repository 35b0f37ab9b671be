import json
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from secrets_data import BASE64, Maker

from clawcli.errors import ConfigError, DataError, NotFoundError
from clawcli.ingest.secrets.redact import Redactor
from clawcli.ingest.secrets.rules import RULES, read_rules

KEY = b"k"
FILLER = " nothing to see here, and a lot of it" * 300


def rules_file(tmp_path, text):
    (tmp_path / "rules.toml").write_text(text)
    return str(tmp_path / "rules.toml")


def redactor(tmp_path, text):
    return Redactor(KEY, [*RULES, *read_rules(rules_file(tmp_path, text))])


def redacted(tmp_path, rules, text):
    """The same text alone and in a long one, which are searched in two ways."""
    one = redactor(tmp_path, rules).text(text)
    assert redactor(tmp_path, rules).text(text + FILLER) == one + FILLER
    assert redactor(tmp_path, rules).text(one) == one
    return re.sub("[0-9a-f]{6}]", "]", one)


BADGE = """
[[rules]]
name = "badge"
pattern = 'EMP-(?P<secret>[0-9]{6})'
keywords = ["emp-"]
"""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_have_a_trigger_that_both_searches_read_and_words_that_it_holds(rule):
    trigger = re.compile(rule.trigger.encode())
    assert trigger.search(b"nothing") is None
    assert re.compile((rule.mark or rule.trigger).encode()).search(b"nothing") is None
    pc.match_substring_regex(pa.array([b""]), rule.trigger)
    assert all(word == word.lower() for word in rule.keywords)
    maker = Maker()
    texts = [around.format(secret) for _, around, secret in maker.of_every_kind()]
    texts.append(f"AKIA{'7K' * 8},{maker.chars(BASE64, 40)}")
    hit = [text for text in texts if trigger.search(text.encode())]
    assert hit
    assert all(any(word in text.lower() for word in rule.keywords) for text in hit)


def test_read_rules_adds_rules_beside_the_own_ones(tmp_path):
    text = "EMP-123456 and emp-123456, password='s3cr3t-place'"
    assert redacted(tmp_path, BADGE, text) == (
        "EMP-[REDACTED:badge:] and emp-123456, password='[REDACTED:assignment:]'"
    )


def test_read_rules_without_keywords_searches_for_the_pattern_itself(tmp_path):
    rules = "[[rules]]\nname = 'badge'\npattern = '(?i)emp-(?P<secret>[0-9]{6})'"
    assert redacted(tmp_path, rules, "EMP-123456") == "EMP-[REDACTED:badge:]"


def test_read_rules_with_min_entropy_leaves_dull_values(tmp_path):
    rules = BADGE + "min_entropy = 2.0\n"
    assert redacted(tmp_path, rules, "EMP-111111 EMP-123456") == "EMP-111111 EMP-[REDACTED:badge:]"


def test_read_rules_that_hit_a_placeholder_leave_it(tmp_path):
    rules = "[[rules]]\nname = 'shout'\npattern = '[A-Z]{8}'"
    assert redacted(tmp_path, rules, "[REDACTED:badge:abcdef] HIDETHIS") == (
        "[REDACTED:badge:] [REDACTED:shout:]"
    )


def test_read_rules_that_hit_numbers_or_run_over_strings_leave_json_valid(tmp_path):
    rules = """
[[rules]]
name = "card"
pattern = '[0-9]{16}'
[[rules]]
name = "span"
pattern = 'from.*to'
"""
    arguments = '{"card": 1234567890123456, "a": "x from", "b": "to y", "c": "kept \\u00e9"}'
    tool_call = {"id": "1", "name": "f", "arguments": arguments, "arguments_valid": True}
    table = pa.table({"tool_calls": [[tool_call]]})
    after, _ = redactor(tmp_path, rules)._table(table)
    value = json.loads(after["tool_calls"][0].as_py()[0]["arguments"])
    assert value["card"].startswith("[REDACTED:card:")
    assert value["c"] == "kept é"
    assert "from" not in str(value)


def test_read_rules_whose_keywords_lie_inside_other_triggers_find_their_secrets(tmp_path):
    rules = """
[[rules]]
name = "outer"
pattern = 'sesame-[a-z]+'
keywords = ["sesame"]
[[rules]]
name = "inner"
pattern = 'ame-[0-9]{4}'
keywords = ["ame"]
"""
    assert redacted(tmp_path, rules, "sesame-1234") == "ses[REDACTED:inner:]"
    assert redacted(tmp_path, rules, "secret_sesame-open = 1") == "secret_[REDACTED:outer:] = 1"


def test_read_rules_missing_file_is_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"none\.toml"):
        read_rules(str(tmp_path / "none.toml"))


def test_read_rules_no_toml_is_data_error(tmp_path):
    with pytest.raises(DataError, match="is no TOML"):
        read_rules(rules_file(tmp_path, "[[rules"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = 'x'", r"no list of rules"),
        ("[[rules]]\nname = 'x'\npatterns = 'y'", r"rule 1 of .*patterns.*pattern"),
        ("[[rules]]\nname = 'x'", r"rule 1 of .*pattern"),
        ("[[rules]]\nname = 'A B'\npattern = 'y'", r"name is missing or has other characters"),
        ("[[rules]]\nname = 'github'\npattern = 'y'", r"one of claw's own"),
        ("[[rules]]\nname = 'x'\npattern = '('", r"\(x\): .*no regular expression"),
        ("[[rules]]\nname = 'x'\npattern = 'a*'", r"matches nothing at all everywhere"),
        ("[[rules]]\nname = 'x'\npattern = '(?<=a)b'", r"Add keywords"),
        ("[[rules]]\nname = 'x'\npattern = 'b'\nkeywords = ['']", r"keyword is empty"),
    ],
)
def test_read_rules_names_what_is_wrong_with_a_rule(tmp_path, text, problem):
    with pytest.raises(ConfigError, match=problem):
        read_rules(rules_file(tmp_path, text))


@pytest.mark.slow
def test_rules_too_large_for_one_search_are_refused(tmp_path):
    rules = "".join(
        f"[[rules]]\nname = 'x{n}'\npattern = '{n}[a-z]{{900}}'\n" for n in range(1000, 6000)
    )
    with pytest.raises(ConfigError, match="too large"):
        redactor(tmp_path, rules)


def test_secret_beside_the_id_of_its_key_goes_as_well():
    text = Redactor(KEY).text(f"AKIA{'QRSTUVWXYZ234567'},{Maker(1).chars(BASE64, 40)}\n")
    assert re.sub("[0-9a-f]{6}]", "]", text) == "[REDACTED:aws_key_id:],[REDACTED:aws_secret:]\n"
