import itertools
import json
import re
import stat
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import shared
from secrets_data import ALNUM, BASE64, Maker

from clawcli import schema
from clawcli.errors import StoreError
from clawcli.ingest.secrets.redact import Redactor, key_of
from clawcli.ingest.secrets.rules import RULES
from clawcli.ingest.secrets.search import SecretSearch
from clawcli.store.location import LOCK, REDACTION_KEY

KEY = bytes(range(32))
PLACEHOLDER = re.compile(r"\[REDACTED:([a-z_]+):[0-9a-f]{6}\]")
TOKEN = "ghp_" + Maker(1).chars(ALNUM, 36)
FILLER = ["nothing to see here, and a lot of it " * 20] * 20


def step(uid="a", **columns):
    """A row of the step table; all that is not said is null."""
    return {column.name: None for column in schema.STEPS} | {"step_uid": uid} | columns


def table(*rows):
    return pa.Table.from_pylist(list(rows), schema=schema.steps_schema())


def message(content=None, **fields):
    return dict.fromkeys(field.name for field in schema.MESSAGE) | {"content": content} | fields


def call(arguments):
    return {"id": "c1", "name": "run", "arguments": arguments, "arguments_valid": True}


def ids_of(text):
    """Token ids of a tokenizer whose vocabulary is the bytes."""
    return list(text.encode())


def strings_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        if value and all(isinstance(item, int) for item in value):
            yield bytes(value).decode(errors="replace")
        for item in value:
            yield from strings_in(item)


def forms_of(secret):
    """A secret as it may be written: plain, in JSON, in JSON in JSON, and in UTF-16."""
    once = json.dumps(secret)[1:-1]
    twice = json.dumps(once)[1:-1]
    escaped = "".join(f"\\u{ord(char):04x}" for char in secret)
    return {secret, once, twice, once.replace("/", "\\/"), escaped, "\0".join(secret)}


# -- what goes, and what stays --------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(Maker().of_every_kind())))
def test_text_with_a_secret_loses_the_secret_alone_however_it_is_escaped(number):
    kind, around, secret = Maker(5).of_every_kind()[number]
    text, redactor = around.format(secret), Redactor(KEY)
    plain = redactor.text(text)
    found = PLACEHOLDER.search(plain)
    assert found is not None
    assert found[1] == kind
    assert plain == around.format(found[0])
    escaped = '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"'
    for written, read in (
        (json.dumps({"a": text}), lambda x: json.loads(x)["a"]),
        (json.dumps([json.dumps([text])]), lambda x: json.loads(json.loads(x)[0])[0]),
        (
            json.dumps([json.dumps([json.dumps([text])])]),
            lambda x: json.loads(json.loads(json.loads(x)[0])[0])[0],
        ),
        (json.dumps(text).replace("/", "\\/"), json.loads),
        (escaped, json.loads),
        ("\0".join(text), lambda x: x.replace("\0", "")),
    ):
        assert read(redactor.text(written)) == plain


@pytest.mark.parametrize("number", range(len(Maker().of_every_kind())))
def test_strings_of_many_and_long_texts_give_what_one_short_text_gives(number):
    _, around, secret = Maker(6).of_every_kind()[number]
    for text in (around.format(secret), json.dumps([around.format(secret)])):
        redacted, changed = Redactor(KEY).strings([*FILLER, f"{text} {FILLER[0] * 20}", None])
        assert redacted[len(FILLER)].as_py() == f"{Redactor(KEY).text(text)} {FILLER[0] * 20}"
        assert np.flatnonzero(changed).tolist() == [len(FILLER)]


@pytest.mark.slow
def test_text_redacted_twice_stays_the_same():
    for seed in range(3):
        maker = Maker(seed)
        kinds = maker.of_every_kind()
        # side by side, inside one another, and cut off
        texts = [" ".join(around.format(secret) for _, around, secret in kinds)]
        texts += [a.format(b.format(s)) for (_, a, _), (_, b, s) in itertools.pairwise(kinds)]
        texts += [around.format(secret)[:-5] for _, around, secret in kinds]
        for text in texts:
            redactor = Redactor(KEY)
            once = redactor.text(text)
            hits = redactor.hits.copy()
            assert redactor.text(once) == once
            assert redactor.hits == hits


def test_private_key_cut_off_in_the_middle_goes_whole():
    pem = Maker(2).pem()
    cut = pem[: len(pem) // 2]
    assert PLACEHOLDER.fullmatch(Redactor(KEY).text(cut))
    assert (
        Redactor(KEY).text(cut + "\n[output cut]\nThe end.").endswith("]\n[output cut]\nThe end.")
    )


def test_placeholder_depends_on_the_secret_and_the_key():
    one, other = (f"ghp_{Maker(seed).chars(ALNUM, 36)}" for seed in (1, 2))
    text = Redactor(KEY).text(f"{one} {other} {one}").split()
    assert text[0] == text[2] != text[1]
    assert Redactor(b"another").text(one) != text[0]


def test_hits_count_each_secret_by_rule_and_found_in_counts_nothing():
    redactor = Redactor(KEY)
    redactor.text(f"{TOKEN} and {TOKEN}, password='s3cr3t-place'")
    assert redactor.hits == {"github": 2, "assignment": 1}
    assert redactor.found_in(["clean", TOKEN])
    assert not redactor.found_in(["clean", redactor.text(TOKEN)])
    assert sum(redactor.hits.values()) == 4


def test_secret_of_a_known_kind_keeps_its_name_behind_a_key():
    assert "token: [REDACTED:github:" in Redactor(KEY).text(f"auth_token: {TOKEN}")
    assert "Bearer [REDACTED:github:" in Redactor(KEY).text(f"Bearer {TOKEN}")


def test_secret_behind_a_value_that_is_none_is_found():
    text = Redactor(KEY).text('secret: x1y2_token_b2c3="4fRq81xLzP0w"')
    assert "4fRq81xLzP0w" not in text


@pytest.mark.parametrize("filler", ["", FILLER[0] * 20])
def test_secret_right_behind_what_looks_like_another_is_found(filler):
    for before in ("x.secret.", "dapi_token_", ":AA", "secret_", "SG.", "://a:", "-token "):
        assert TOKEN not in Redactor(KEY).text(f"{before}{TOKEN} {filler}")


def test_value_with_escaped_quotes_goes_whole():
    for written in ('{"password": "ab\\"cd-12345"}', '{"password": "ab\\\\cd-12345"}'):
        redacted = Redactor(KEY).text(written)
        assert PLACEHOLDER.fullmatch(json.loads(redacted)["password"])


@pytest.mark.slow
def test_clean_text_gives_no_hits():
    maker, hexadecimal = Maker(3), "0123456789abcdef"
    uuids = [
        "-".join(maker.chars(hexadecimal, size).replace("k", "f") for size in (8, 4, 4, 4, 12))
        for _ in range(500)
    ]
    hashes = [maker.chars(hexadecimal, size).replace("k", "f") for size in (32, 40, 64) * 300]
    images = [f"data:image/png;base64,{maker.chars(BASE64, 20_000)}" for _ in range(20)]
    texts = [
        *uuids,
        *(f"commit {sha}\nindex {sha[:7]}..{sha[7:14]}" for sha in hashes),
        *(json.dumps({"id": sha, "call_id": f"call_{sha[:24]}", "sha256": sha}) for sha in hashes),
        *images,
        "task-oriented-dialogue-systems-with-memory, risk-aware-planning-for-agents-2",
        "class=sk-estimator-doc-link-fitted-on-hover-wrapper",
        "token = tokens[index + 1]; token_count: 123456789012; max_token=4096123123",
        "self.access_token = response2.data.token1; secret = get_secret(name='db1-prod-9')",
        'const secretName = "db-credentials-v2"; tokenizer: "Qwen2Tokenizer2024Fast"',
        '{"next_page_token": "CAoQ7f81Kz0pLw92", "token_type": "bearer12345678"}',
        "password: str = Field(...), pwd = os.getcwd(), password_field = form1.fields[2]",
        "Please enter your password: it must have 8 characters. The secret is: patience4ever no.",
        "https://example.org:8080/a/@scope/b http://user:password@localhost ssh://git@host:22/x",
        "the bearer of good news, Bearer authentication, Authorization: see RFC 7235 section 4.2",
        "-----BEGIN PRIVATE KEY----- is how such a file begins; -----BEGIN CERTIFICATE-----",
        'if "-----BEGIN RSA PRIVATE KEY-----" in text or "-----BEGIN EC PRIVATE KEY-----" in text:',
        "eyJhbGciOiJIUzI1NiJ9 is a header alone; swebench/sweb.eval.x86_64.marshmallow_1776",
    ]
    redactor = Redactor(KEY)
    redacted, changed = redactor.strings(texts)
    assert [redacted[row].as_py()[:80] for row in np.flatnonzero(changed)] == []
    assert redactor.text(texts[0]) is texts[0]


def test_value_beyond_ascii_is_cut_between_characters():
    for length in range(240, 262):
        text = Redactor(KEY).text(f"password=a7{'é€' * length}")
        assert "password=[REDACTED:assignment:" in text


def test_stand_ins_for_secrets_stay():
    texts = [
        "ghp_" + "x" * 36,
        "AKIAIOSFODNN7EXAMPLE",
        "sk-your-api-key-goes-here-please-1",
        "export API_KEY=your-key-here-123456",
        "password='${DB_PASSWORD_1}' token=\"{{ secrets.TOKEN_1 }}\" secret: <my-secret-1>",
        "api_key=os.environ['OPENAI_KEY_2'] api_key = process.env.API_KEY_2_OF_MANY",
        "https://oauth2:${GITLAB_TOKEN}@gitlab.com/a/b.git",
    ]
    assert [Redactor(KEY).text(text) for text in texts] == texts


@pytest.mark.parametrize("folder", ["tau-bench", "claude-code", "openai-chat", "swe-agent"])
def test_shared_logs_give_no_hits(folder):
    redactor = Redactor(KEY)
    for path in shared(folder).rglob("*"):
        if path.is_file():
            redactor.strings(path.read_text(errors="replace").splitlines())
    assert redactor.hits == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "a-",
        " ",
        "sk-",
        "token=",
        "token='a1",
        'secret=\\"',
        "password=\\\\\\",
        "eyJ",
        "://a:b",
        "://a:bcd@ ",
        "-----BEGIN PRIVATE KEY-----\n",
        "\\u0041",
        "a\0",
        "\\",
        "bearer ",
        ".aaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaa",
        '{"name":"token","value":',
        "[REDACTED:github:aaaaaa]",
    ],
)
def test_hostile_text_takes_time_in_proportion_to_its_length(unit):
    def seconds(length):
        text = unit * (length // len(unit))
        redactor = Redactor(KEY)
        started = time.process_time()
        redactor.strings([text])
        return time.process_time() - started

    # what takes the square of the length takes 16 times as long; small times are mostly noise
    small = max(seconds(50_000), 0.05)
    assert seconds(200_000) < 10 * small


@pytest.mark.slow
def test_prose_about_tokens_and_keys_is_searched_as_fast_as_other_prose():
    words = "token key secret password api key access token secret: password reset bearer of key="
    about = [f"the {words} and {words} " * 16] * 2000
    other = ["what one reads in a log of some agent that does its work all day long " * 45] * 2000

    def seconds(texts):
        array, times = pa.array(texts), []
        for _ in range(3):
            started = time.process_time()
            Redactor(KEY).strings(array)
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(about) < 3 * seconds(other)


# -- rows of the step table -----------------------------------------------------------------------


def planted(uid, secret, around):
    """A row with a secret wherever there is room for one."""
    text = around.format(secret)
    inner = json.dumps({"cmd": text, "script": json.dumps({"env": [text]})})
    part = json.dumps([{"type": "text", "text": text}, {"type": "x", "y": "\0".join(text)}])
    said = [
        message(text, role="user", name=text, tool_call_id=text, reasoning=text),
        message(parts=part, role="tool", tool_calls=[call(inner)]),
    ]
    everything = f"{text}{part}{inner}"
    return step(
        uid,
        prefix_messages=0,
        native_id=text,
        task_id=text,
        agent=text,
        model=text,
        policy=text,
        source_path=text,
        finish_reason_raw=text,
        system=text,
        tools=json.dumps([{"name": "t", "description": text}]),
        sampling=json.dumps({"stop": [text]}).replace("/", "\\/"),
        metadata=json.dumps({"raw": "".join(f"\\u{ord(c):04x}" for c in text), text: [inner]}),
        observation=said,
        final_observation=said,
        response=text,
        reasoning=text,
        response_parts=part,
        tool_calls=[call(inner)],
        prefix_tokens=0,
        observation_ids=ids_of(everything),
        response_ids=ids_of(text),
        rollout_logprobs=[-1.0] * len(ids_of(text)),
        token_provenance="engine_logprobs",
    )


@pytest.mark.slow
def test_steps_with_200_planted_secrets_hold_none_of_them(tmp_path):
    kinds = [kind for seed in range(6) for kind in Maker(100 + seed).of_every_kind()][:200]
    assert len(kinds) == 200
    rows = [planted(f"{n:032x}", secret, around) for n, (_, around, secret) in enumerate(kinds)]
    before = table(*rows)
    redactor = Redactor(KEY)
    after = redactor.steps(before)
    pq.write_table(after, tmp_path / "x.parquet", compression="none", use_dictionary=False)
    stored = (tmp_path / "x.parquet").read_bytes()
    texts = "\n".join(strings_in(after.to_pylist()))
    for _, _, secret in kinds:
        for form in forms_of(secret):
            assert form not in texts, "a planted secret can be read"
            assert form.encode() not in stored, "a planted secret can be read in the file"
    after.validate(full=True)
    assert after.schema == before.schema
    for row in after.to_pylist():
        json.loads(json.loads(row["tool_calls"][0]["arguments"])["script"])
        for name in ("tools", "sampling", "metadata", "response_parts"):
            json.loads(row[name])
    assert {kind for kind, _, _ in kinds} == set(redactor.hits)
    assert redactor.steps(after) == after


def test_steps_without_a_secret_are_the_same_buffers():
    before = table(step(response="fine", observation=[message("hello", role="user")]))
    after = Redactor(KEY).steps(before)
    for one, two in zip(before.columns, after.columns, strict=True):
        assert [b and b.address for c in one.chunks for b in c.buffers()] == [
            b and b.address for c in two.chunks for b in c.buffers()
        ]


def test_steps_keep_their_uids_and_hashes_whatever_they_look_like():
    uids = "step_uid source_uid trajectory_uid parent_trajectory_uid group_uid parent_step_uid"
    kept = dict.fromkeys(
        [*uids.split(), "state_hash", "next_hash", "log_format", "log_date"], TOKEN
    )
    after = Redactor(KEY).steps(table(step() | kept))
    assert {name: after[name][0].as_py() for name in kept} == kept


def logged(uid, **columns):
    return step(
        uid,
        **{
            "prefix_messages": 0,
            "observation": [message("go on", role="user")],
            "response": "yes",
            "prefix_tokens": 0,
            "observation_ids": [1, 2],
            "response_ids": [3],
            "rollout_logprobs": [-1.0],
            "token_provenance": "engine_logprobs",
        }
        | columns,
    )


IDS = ("prefix_tokens", "observation_ids", "response_ids", "rollout_logprobs", "token_provenance")


@pytest.mark.parametrize("column", ["system", "tools", "observation", "final_observation"])
def test_steps_with_a_secret_in_the_state_lose_the_ids_of_the_state(column):
    value = [message(TOKEN, role="user")] if "observation" in column else json.dumps([TOKEN])
    (row,) = Redactor(KEY).steps(table(logged("a", **{column: value}))).to_pylist()
    assert [row[name] for name in IDS] == [None, None, [3], [-1.0], "engine_logprobs"]
    assert row["warnings"] == ["ids_dropped_redacted"]


@pytest.mark.parametrize("column", ["response", "reasoning", "response_parts", "tool_calls"])
def test_steps_with_a_secret_in_the_action_lose_the_ids_of_the_action(column):
    value = [call(json.dumps({"x": TOKEN}))] if column == "tool_calls" else json.dumps([TOKEN])
    before = logged("a", warnings=["odd"], **{column: value})
    (row,) = Redactor(KEY).steps(table(before)).to_pylist()
    assert [row[name] for name in IDS] == [0, [1, 2], None, None, "text"]
    assert row["warnings"] == ["odd", "ids_dropped_redacted"]


def test_steps_with_a_secret_but_no_ids_are_not_warned_about():
    (row,) = Redactor(KEY).steps(table(step(response=TOKEN))).to_pylist()
    assert row["warnings"] is None


def test_steps_that_continue_a_secret_lose_the_ids_that_may_spell_it_again():
    rows = [
        logged("younger", parent_step_uid="child", prefix_messages=4),
        logged("child", parent_step_uid="root", prefix_messages=2),
        logged("root", system=TOKEN),
        logged("other"),
        logged("restated", parent_step_uid="root", prefix_messages=0),
    ]
    redactor = Redactor(KEY)
    after = redactor.steps(table(*rows))
    later = redactor.steps(table(logged("later", parent_step_uid="younger", prefix_messages=6)))
    ids = dict(
        zip(after["step_uid"].to_pylist(), after["observation_ids"].to_pylist(), strict=True)
    )
    tainted = {uid for uid, kept in ids.items() if kept is None}
    assert tainted == {"root", "child", "younger"}
    assert redactor.tainted == {*tainted, "later"}
    assert later["observation_ids"].to_pylist() == [None]
    assert later["response_ids"].to_pylist() == [[3]]


def test_steps_with_a_secret_lose_the_ids_and_token_texts_in_their_metadata():
    metadata = {"ids": ids_of(TOKEN), "top": [{"token": char} for char in TOKEN], "n": [1, 2]}
    (row,) = (
        Redactor(KEY)
        .steps(table(logged("a", response=TOKEN, metadata=json.dumps(metadata))))
        .to_pylist()
    )
    assert json.loads(row["metadata"]) == {"ids": None, "top": None, "n": [1, 2]}


def test_steps_in_slices_and_chunks_are_redacted_like_whole_ones():
    rows = [
        logged(str(n), observation=None if n % 3 == 0 else [message(TOKEN, role="user")] * (n % 3))
        for n in range(12)
    ]
    whole = table(*rows)
    parts = pa.concat_tables([whole.slice(0, 5), whole.slice(5, 0), whole.slice(5)])
    assert Redactor(KEY).steps(parts) == Redactor(KEY).steps(whole)
    assert Redactor(KEY).steps(whole.slice(3, 4)) == Redactor(KEY).steps(whole).slice(3, 4)
    assert Redactor(KEY).steps(whole.slice(0, 0)).num_rows == 0


def test_steps_with_missing_messages_keep_them_missing():
    rows = [
        step("a", observation=[None, message(TOKEN), None]),
        step("b"),
        step("c", observation=[]),
    ]
    after = Redactor(KEY).steps(table(*rows))["observation"].to_pylist()
    assert [row and [m is None for m in row] for row in after] == [[True, False, True], None, []]


def test_rejects_lose_their_secrets():
    row = dict.fromkeys(column.name for column in schema.REJECTS)
    row |= {"first_bytes": f'{{"key": "{TOKEN}", "n"', "source_path": f"/logs/{TOKEN}.json"}
    rejects = pa.Table.from_pylist([row], schema=schema.arrow_schema(schema.REJECTS))
    assert not any(TOKEN in text for text in strings_in(Redactor(KEY).rejects(rejects).to_pylist()))


def test_nothing_that_is_shown_holds_a_secret():
    redactor = Redactor(KEY)
    redactor.text(TOKEN)
    spans = SecretSearch(RULES).spans([TOKEN.encode()])[0]
    assert spans
    assert TOKEN not in repr(spans) + repr(redactor) + repr(vars(redactor))


# -- the key of a data directory ------------------------------------------------------------------


def test_key_is_made_once_for_its_owner_alone(tmp_path):
    key = key_of(tmp_path / "data")
    path = tmp_path / "data" / REDACTION_KEY
    assert path.read_bytes() == key == key_of(str(tmp_path / "data"))
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {path.name for path in (tmp_path / "data").iterdir()} == {LOCK, REDACTION_KEY}
    assert key_of(tmp_path / "other") != key


def test_key_that_a_killed_run_left_half_made_is_no_key_and_goes(tmp_path):
    (tmp_path / f"{REDACTION_KEY}.0123456789abcdef").write_bytes(b"half")
    key_of(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, REDACTION_KEY}


def test_key_made_by_many_at_once_is_one(tmp_path):
    keys = []
    threads = [
        threading.Thread(target=lambda: keys.append(key_of(tmp_path / "data"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_key_of_a_url_is_made_once():
    key = key_of("memory://redaction/data")
    assert key == key_of("memory://redaction/data/")
    assert len(key) == 32


def test_key_of_another_length_is_refused(tmp_path):
    (tmp_path / REDACTION_KEY).write_bytes(b"short")
    with pytest.raises(StoreError, match="holds 5 bytes"):
        key_of(tmp_path)


def test_key_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"can be neither read nor made .*--no-redact"):
        key_of(tmp_path / "file")
