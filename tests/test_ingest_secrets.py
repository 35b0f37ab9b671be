"""Secrets of a log are nowhere in the data directory: not in rows, rejects, ids or the Delta log."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import assistant, pair, system, tool, user
from secrets_data import Maker

from clawcli.ingest.run import IngestConfig, ingest

PLACES = 8


def ids_of(text):
    return list(text.encode())


def conversation(number, makers):
    """Two calls of one conversation; every place of them may hold a text with a secret."""
    said = [maker() for maker in makers]
    tools = [{"type": "function", "function": {"name": "run", "description": said[0]}}]
    first = [system(said[1]), user(said[2])]
    arguments = json.dumps({"cmd": said[3], "inner": json.dumps({"deep": said[4]})})
    answer = assistant(said[5], calls=[(f"c{number}", "run", arguments)], reasoning=said[6])
    second = [*first, answer, tool(said[7], f"c{number}")]
    records = []
    for turn, messages in enumerate((first, second)):
        reply = answer if turn == 0 else assistant(f"done {number}")
        prompt = ids_of(json.dumps(messages, ensure_ascii=False))
        # the second prompt is tokenised otherwise, and spells the first once more
        prompt = prompt if turn == 0 else prompt[::-1][::-1]
        record = pair(
            messages, reply, tools=tools, uid=f"{number}-{turn}", at=1.7e9 + number * 10 + turn
        )
        record["note"] = said[0]
        response = record["response"]
        response["prompt_token_ids"] = prompt
        response["choices"][0]["token_ids"] = ids_of(json.dumps(reply, ensure_ascii=False))
        records.append(record)
    return records


def planted(seed):
    """Records with a secret of each kind in each place, and all secrets."""
    maker = Maker(seed)
    secrets, records, number = [], [], 0
    for place in range(PLACES):
        for _, around, secret in maker.of_every_kind():
            secrets.append(secret)
            texts = [f"nothing here {number}"] * PLACES
            texts[place] = around.replace("{}", secret)
            records += conversation(number, [lambda text=text: text for text in texts])
            number += 1
    return records, secrets


def spellings(directory):
    """All bytes of a directory, compressed or not, and what its token ids spell."""
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        yield path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="none", use_dictionary=False)
            yield sink.getvalue().to_pybytes()
            for name in ("observation_ids", "response_ids"):
                if name in table.column_names:
                    for ids in table[name].drop_null().to_pylist():
                        yield bytes(ids)
                        yield bytes(ids).decode(errors="replace").encode("unicode_escape")


def leaks(directory, secrets):
    found = b"\n".join(spellings(directory))
    return [secret for secret in secrets if any(form in found for form in escaped(secret))]


def escaped(secret):
    """A secret as it stands in text, in JSON, and in JSON inside JSON."""
    for _ in range(4):
        yield secret.encode()
        secret = json.dumps(secret)[1:-1]


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1, 4])
def test_planted_secrets_are_nowhere_in_the_data_directory(tmp_path, commits):
    records, secrets = planted(1)
    assert len(secrets) >= 200
    # records that give no step hold secrets too: an error, a broken line
    broken = [json.dumps({"request": {"messages": 3}, "note": secrets[0]})]
    broken.append('{"cut": "' + secrets[1] + '", ')
    lines = [json.dumps(record) for record in records] + broken
    data = tmp_path / "data"
    for part in range(commits):
        path = tmp_path / f"{part}.jsonl.gz"
        # turns of one conversation come in different commits
        path.write_bytes(gzip.compress("\n".join([*lines[part::commits], ""]).encode()))
        report = ingest(IngestConfig(inputs=(str(path),), output=str(data)))
    assert leaks(data, secrets) == []
    assert sum(report.secrets_by_rule.values()) > 0
    # the search itself finds what is there
    kept = tmp_path / "kept"
    plain = tmp_path / "all.jsonl"
    plain.write_text("\n".join([*lines, ""]))
    ingest(IngestConfig(inputs=(str(plain),), output=str(kept), redact=False))
    assert set(leaks(kept, secrets)) == set(secrets)


def test_secret_in_a_path_is_not_in_the_commit_info(tmp_path):
    _, secrets = planted(2)
    secret = next(s for s in secrets if s.startswith("ghp_"))
    folder = tmp_path / secret
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps(pair([user("u")], assistant("a"), uid="1")) + "\n")
    ingest(IngestConfig(inputs=(str(folder),), output=str(tmp_path / "data")))
    assert leaks(tmp_path / "data", [secret]) == []
