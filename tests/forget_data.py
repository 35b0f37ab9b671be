"""A data directory with the logs of a customer who is to be forgotten, and a search in its bytes."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import assistant, pair, system, tau, tool, user, write_lines

from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, table

WHERE = "contains(source_path, 'PLANT')"


class Plants:
    """Strings that stand nowhere else."""

    def __init__(self):
        self.all = []

    def new(self):
        number = hashlib.blake2b(str(len(self.all)).encode(), digest_size=6).hexdigest()
        self.all.append(f"PLANT{number}TNALP")
        return self.all[-1]


def chat(path, name, word, *, turns=4):
    """A log of request and response pairs: text, arguments, results, metadata, a failed call."""
    messages, records = [system(word()), user(word())], []
    for turn in range(turns):
        answer = assistant(word(), calls=[(f"c{turn}", "f", json.dumps({"q": word()}))])
        records.append(
            pair(
                messages,
                answer,
                at=1_000.0 + turn,
                uid=f"{name}-{turn}",
                finish="tool_calls",
                user=word(),
            )
        )
        if turn + 1 < turns:
            messages = [*messages, answer, tool(word(), f"c{turn}"), user(word())]
    failed = {"request": {"model": "m", "messages": [user(word())]}, "response": {"error": word()}}
    return write_lines(path, [*records, failed])


def attempts(path, word, *tasks):
    """A tau-bench file: an attempt at each task, of which the last one is empty."""
    made = [
        (task, 0, 1.0, [system("s"), user(word()), assistant(word()), user(word()), assistant("b")])
        for task in tasks[:-1]
    ]
    path.write_text(tau([*made, (tasks[-1], 0, 0.0, [])]))
    return path


def plain(name):
    """Words of somebody who stays."""
    count = iter(range(1_000_000))
    return lambda: f"{name} {next(count)}"


def run(output, *paths, **options):
    config = IngestConfig(inputs=tuple(map(str, paths)), output=str(output), **options)
    return ingest(config)


def both(tmp_path):
    """Logs of a customer who stays and of one who goes, in one directory; gives it and the plants."""
    plants = Plants()
    data, logs = tmp_path / "data", tmp_path / "logs"
    logs.mkdir()
    run(data, chat(logs / "stays.jsonl", "stays", plain("stays")))
    run(data, chat(logs / f"{plants.new()}.jsonl", "goes", plants.new, turns=10))
    goes = attempts(logs / f"{plants.new()}.json", plants.new, *(plants.new() for _ in range(14)))
    rewards = write_lines(logs / f"{plants.new()}.jsonl", [{"native_id": "goes-3", "reward": 0.5}])
    run(
        data,
        goes,
        attempts(logs / "stays.json", plain("task"), "1", "2", "3"),
        rewards=str(rewards),
    )
    # the first calls are logged once more, in another place
    copy = chat(logs / f"{plants.new()}-copy.jsonl", "goes", Plants().new, turns=0)
    lines = (logs / f"{plants.all[0]}.jsonl").read_text().splitlines(keepends=True)
    copy.write_text("".join([json.dumps({"not": "a call"}) + "\n", *lines[:2]]))
    run(data, copy)
    return data, plants


def search(directory, words):
    """Find words in the bytes of all files, Parquet also as it reads, and in their names."""
    texts = []
    for path in Path(directory).rglob("*"):
        texts.append(str(path).encode())
        if not path.is_file():
            continue
        texts.append(path.read_bytes())
        if path.suffix == ".parquet" and texts[-1].endswith(b"PAR1"):
            with pq.ParquetFile(path) as opened:
                texts.append(str(opened.read().to_pylist()).encode())
                texts.append(str(opened.metadata.to_dict()).encode())
    return {word for word in words if any(word.encode() in text for text in texts)}


def rows(directory, version=None, part="steps"):
    """Rows of a table by step_uid, as stored."""
    found = table.read(location.Location(directory, version), part)
    return {row["step_uid"]: row for row in found.to_pylist()}


def rows_hash(directory, version=None):
    ordered = table.read(location.Location(directory, version)).sort_by("step_uid")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ordered.schema) as stream:
        stream.write_table(ordered.combine_chunks())
    return hashlib.blake2b(sink.getvalue()).hexdigest()


def files(directory):
    """All files with their content."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
