import itertools
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import assistant, system, tau, tool, user

from clawcli import config
from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import (
    ConfigError,
    DataError,
    NotFoundError,
    OutputExistsError,
    UsageError,
    VerifyError,
)
from clawcli.export import write
from clawcli.export.config import ExportShardsConfig
from clawcli.export.shards import export_shards
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import artefact, shards, tokenizers, trees

LAYOUTS = ("tree", "chain", "none")


def attempt(*answers):
    messages = [system("You help."), user("Book a flight.")]
    for answer in answers:
        messages += [assistant(answer, calls=[("c", "find", '{"to": "Rome"}')]), tool("ok " * 9)]
    return messages


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Four attempts at two tasks, 13 steps, some of them alike."""
    place = tmp_path_factory.mktemp("place")
    attempts = [
        (1, 0, 1.0, attempt("A", "B", "C", "D")),
        (1, 1, 0.0, attempt("A", "B", "E")),
        (1, 2, 0.5, attempt("F", "G")),
        (2, 0, 1.0, attempt("A", "B", "C", "D")),
    ]
    (place / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(place / "t.json"),), output=str(place / "data")))
    merge(place / "data", place / "tree")
    return place


def merge(source, output):
    return merge_prefixes(MergeConfig(input=str(source), output=str(output), tokenizer="tiny"))


def export(source, output, **options):
    return export_shards(ExportShardsConfig(input=str(source), output=str(output), **options))


def steps_of(opened):
    return {
        step["step_uid"]: (row, step) for row in opened.rows() for step in row.steps.to_pylist()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", [1, 200, 100_000])
@pytest.mark.parametrize(("sample", "seed"), [("all", 0), ("7", 0), ("7", 1), ("4", 2)])
def test_export_every_step_stands_once_with_the_tokens_of_its_row(
    place, tmp_path, layout, target, sample, seed
):
    options = {"sample": sample, "unit": "step", "seed": seed}
    export(place / "tree", tmp_path / "s", merge=layout, max_tokens_per_row=target, **options)
    tree, found = trees.read(place / "tree"), steps_of(shards.open_shards(tmp_path / "s"))
    paths = [path for path in tree.paths.to_pylist() if path["step_uid"] in found]
    assert len(found) == len(paths) == (13 if sample == "all" else int(sample))
    for path in paths:
        row, step = found[path["step_uid"]]
        whole = tree.forest.row(path["end_node_id"])
        on_path = row.forest.row(step["segment"])
        assert np.array_equal(on_path[: len(whole)], whole)
        flat = row.forest.span(step["segment"], step["response_start"], step["response_end"])
        action = whole[path["response_start"] : path["response_end"]]
        assert np.array_equal(row.forest.token_ids[flat], action)


def test_export_step_fields_are_those_of_the_path(place, tmp_path):
    export(place / "tree", tmp_path / "s")
    found = steps_of(shards.open_shards(tmp_path / "s"))
    for path in trees.read(place / "tree").paths.to_pylist():
        _, step = found[path["step_uid"]]
        assert (step["pi"], step["weight"]) == (1.0, path["loss_weight"])
        for name in set(path) & set(step):
            assert step[name] == path[name]


def test_export_chain_trains_each_action_token_of_a_step_on_one_row(place, tmp_path):
    export(place / "tree", tmp_path / "s", merge="chain")
    rows = list(shards.open_shards(tmp_path / "s").rows())
    assert all((row.forest.segment_parents == -1).all() for row in rows)
    # D of both tasks and E and G are leaves: alike attempts share a row, with an entry each
    assert sum(len(row.forest.segment_starts) for row in rows) == 3
    assert sum(len(row.steps) for row in rows) == 13


def test_export_saves_most_as_tree_and_nothing_as_none(place, tmp_path):
    reports = {m: export(place / "tree", tmp_path / m, merge=m) for m in LAYOUTS}
    unique = len(trees.read(place / "tree").forest.token_ids)
    assert reports["tree"].tokens == unique
    assert reports["none"].tokens == reports["none"].logical_tokens
    assert unique < reports["chain"].tokens < reports["none"].tokens
    assert reports["tree"].merge_kept_frac == 1.0
    assert reports["none"].merge_kept_frac == unique / reports["none"].logical_tokens


def test_export_next_step_is_found_where_it_is_said_to_be(place, tmp_path):
    export(place / "tree", tmp_path / "s", max_tokens_per_row=1)
    opened = shards.open_shards(tmp_path / "s")
    rows = [row.steps.to_pylist() for row in opened.rows()]
    last = 0
    for step in itertools.chain.from_iterable(rows):
        if step["next_row"] is None:
            assert step["is_last"]
            last += 1
            continue
        following = rows[step["next_row"]][step["next_step"]]
        assert following["trajectory_uid"] == step["trajectory_uid"]
        assert following["step_index"] == step["step_index"] + 1
    assert last == 4


def test_export_plan_covers_rows_in_order_by_updates_and_phases(place, tmp_path):
    options = {"max_tokens_per_row": 150, "tokens_per_update": 350, "updates_per_phase": 2}
    report = export(place / "tree", tmp_path / "s", merge="none", **options)
    opened = shards.open_shards(tmp_path / "s")
    rows = list(opened.rows())
    assert [row.row_id for row in rows] == list(range(report.rows))
    updates = opened.manifest.plan.updates
    assert len(updates) == opened.num_updates == report.updates > 2
    assert [update.row_ids for update in updates] == [
        [row.row_id for row in rows if row.update == number] for number in range(len(updates))
    ]
    assert [row for update in updates for row in update.row_ids] == list(range(report.rows))
    assert opened.num_phases == report.phases == -(-report.updates // 2)
    assert [update.phase for update in updates] == [u // 2 for u in range(report.updates)]
    for number, update in enumerate(updates):
        mine = [row for row in rows if row.update == number]
        assert {row.phase for row in mine} == {update.phase}
        assert len(mine) == 1 or sum(len(row.forest.token_ids) for row in mine) <= 350


def test_export_seed_decides_the_order_and_nothing_else(place, tmp_path):
    options = {"max_tokens_per_row": 1, "merge": "none"}
    order = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        export(place / "tree", tmp_path / name, seed=seed, **options)
        rows = shards.open_shards(tmp_path / name).rows()
        order[name] = [row.steps.texts("step_uid")[0] for row in rows]
    assert order["a"] == order["b"] != order["c"]
    assert sorted(order["a"]) == sorted(order["c"])
    files = [(tmp_path / name / shards.part_file(0)).read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


def test_export_steps_that_are_too_long_are_left_out_and_named(place, tmp_path):
    lengths = trees.read(place / "tree").paths.select(["step_uid", "row_tokens"]).to_pylist()
    bound = sorted(path["row_tokens"] for path in lengths)[-3]
    long = {path["step_uid"] for path in lengths if path["row_tokens"] > bound}
    report = export(place / "tree", tmp_path / "s", max_step_tokens=bound)
    assert report.steps_left_out_by_reason == {"too_long": len(long)}
    assert report.left_out == dict.fromkeys(long, "too_long")
    opened = shards.open_shards(tmp_path / "s")
    assert not long & set(steps_of(opened))
    assert artefact.read_manifest(opened.path)["left_out"] == report.left_out
    # the step before one that is left out has no next step here
    assert all(
        step["next_row"] is None
        for _, step in steps_of(opened).values()
        if not step["is_last"] and step["step_index"] == 2
    )


def test_export_all_steps_too_long_is_refused(place, tmp_path):
    with pytest.raises(DataError, match=r"13 are longer than --max-step-tokens"):
        export(place / "tree", tmp_path / "s", max_step_tokens=1)


def test_export_context_steps_are_not_trained(place, tmp_path):
    curate(
        CurateConfig(input=str(place / "data"), output=str(tmp_path / "d"), where="step_index = 1")
    )
    merge(tmp_path / "d", tmp_path / "tree")
    report = export(tmp_path / "tree", tmp_path / "s")
    assert report.steps == 4
    assert {s["step_index"] for _, s in steps_of(shards.open_shards(tmp_path / "s")).values()} == {
        1
    }


def test_export_of_a_tree_that_lies_on_disk_writes_the_same_files(place, tmp_path, monkeypatch):
    options = {"max_tokens_per_row": 300, "sample": "3"}
    export(place / "tree", tmp_path / "a", **options)
    monkeypatch.setattr(trees, "_TOKENS_IN_MEMORY", 0)
    monkeypatch.setattr(write, "_TOKENS_PER_GROUP", 1)
    monkeypatch.setattr(shards, "_TOKENS_PER_PART", 1)
    report = export(place / "tree", tmp_path / "b", **options)
    parts = sorted((tmp_path / "b" / "rows").iterdir())
    assert len(parts) == report.shards > 1
    rows = [list(shards.open_shards(tmp_path / name).rows()) for name in ("a", "b")]
    assert len(rows[0]) == len(rows[1]) == report.rows
    for one, other in zip(*rows, strict=True):
        assert np.array_equal(one.forest.token_ids, other.forest.token_ids)
        assert np.array_equal(one.forest.segment_parents, other.forest.segment_parents)
        assert one.steps.to_pylist() == other.steps.to_pylist()
    # nothing is left beside the output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]


def test_export_dry_run_reports_the_same_and_writes_nothing(place, tmp_path):
    dry = export(place / "tree", tmp_path / "dry", dry_run=True)
    assert not (tmp_path / "dry").exists()
    assert dry == export(place / "tree", tmp_path / "s")


@pytest.mark.parametrize("value", [0, -1, 2**31, 10**30])
@pytest.mark.parametrize(
    "name", ["max_tokens_per_row", "max_step_tokens", "tokens_per_update", "updates_per_phase"]
)
def test_export_size_out_of_range_is_a_config_error(name, value):
    with pytest.raises(ConfigError, match=re.escape(str(value))):
        config.resolve(ExportShardsConfig, {"input": "t", "output": "s"}, sets=[f"{name}={value}"])


@pytest.mark.parametrize("seed", [-1, 2**63, 10**19, 10**30])
def test_export_seed_out_of_range_is_a_config_error(seed):
    with pytest.raises(ConfigError, match=re.escape(str(seed))):
        config.resolve(ExportShardsConfig, {"input": "t", "output": "s", "seed": seed})


def test_export_largest_sizes_and_seed_work(place, tmp_path):
    most = 2**31 - 1
    report = export(
        place / "tree",
        tmp_path / "s",
        seed=2**63 - 1,
        max_tokens_per_row=most,
        max_step_tokens=most,
        tokens_per_update=most,
        updates_per_phase=most,
    )
    assert (report.rows, report.phases) == (1, 1)
    assert len(list(shards.open_shards(tmp_path / "s").rows())) == 1


@pytest.mark.parametrize("output", ["tree", "tree/s", "."])
def test_export_output_that_touches_the_tree_is_refused(place, output):
    before = artefact.verify_files(place / "tree")
    with pytest.raises(UsageError, match="the input"):
        export(place / "tree", place / output, force=True)
    assert artefact.verify_files(place / "tree") == before


@pytest.mark.parametrize("kind", ["run", "tree"])
def test_export_force_keeps_what_another_verb_made(place, tmp_path, kind):
    with artefact.create(tmp_path / "r", kind=kind, force=False, config={}, inputs=[]) as draft:
        (draft.path / "weights").write_text("months")
    with pytest.raises(OutputExistsError, match="was not written by this verb"):
        export(place / "tree", tmp_path / "r", force=True)
    assert (tmp_path / "r" / "weights").read_text() == "months"


def test_merge_output_that_touches_the_data_is_refused(place):
    with pytest.raises(UsageError, match="lies inside the input"):
        merge(place / "data", place / "data" / "tree")


def test_export_from_data_says_what_it_is(place, tmp_path):
    with pytest.raises(DataError, match=r"is a data directory\. Add --as sft"):
        export(place / "data", tmp_path / "s")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("file", ["tokenizer.json", trees.NODES_FILE, trees.PATHS_FILE])
def test_export_of_a_damaged_tree_is_refused_also_dry(place, tmp_path, file, dry_run):
    shutil.copytree(place / "tree", tmp_path / "tree")
    os.truncate(tmp_path / "tree" / file, 100)
    with pytest.raises(VerifyError, match="has 100 bytes"):
        export(tmp_path / "tree", tmp_path / "s", dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
def test_export_of_a_tree_without_tokenizer_is_refused_also_dry(place, tmp_path, dry_run):
    shutil.copytree(place / "tree", tmp_path / "tree")
    (tmp_path / "tree" / "tokenizer.json").unlink()
    manifest = artefact.read_manifest(tmp_path / "tree")
    manifest["files"] = [f for f in manifest["files"] if f["path"] != "tokenizer.json"]
    (tmp_path / "tree" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(VerifyError, match=r"holds no tokenizer\.json"):
        export(tmp_path / "tree", tmp_path / "s", dry_run=dry_run)


def test_export_existing_output_and_missing_tree_are_refused(place, tmp_path):
    export(place / "tree", tmp_path / "s")
    with pytest.raises(OutputExistsError):
        export(place / "tree", tmp_path / "s")
    with pytest.raises(NotFoundError):
        export(tmp_path / "none", tmp_path / "t")
    with pytest.raises(DataError, match="holds shards, not tree"):
        export(tmp_path / "s", tmp_path / "t")


def test_manifest_tells_a_reader_all_it_needs(place, tmp_path):
    report = export(place / "tree", tmp_path / "s")
    manifest = shards.open_shards(tmp_path / "s").manifest
    tree = trees.read(place / "tree").manifest
    assert manifest.vocab_hash == tree.vocab_hash
    assert manifest.eos_token_id == 2
    assert artefact.read_manifest(tmp_path / "s")["merge"] == "tree"
    assert (manifest.rows, manifest.steps, manifest.tokens) == (
        report.rows,
        report.steps,
        report.tokens,
    )
    file = tmp_path / "s" / manifest.tokenizer_file
    assert tokenizers.load(str(file)).vocab_hash == manifest.vocab_hash


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, "is missing"),
        (lambda file: os.truncate(file, 0), "has 0 bytes"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), "bytes, not"),
        (flip, "has other content"),
    ],
)
@pytest.mark.parametrize("file", [shards.part_file(0), "tokenizer.json"])
def test_open_shards_damaged_file_is_a_verify_error(place, tmp_path, file, damage, problem):
    export(place / "tree", tmp_path / "s")
    damage(tmp_path / "s" / file)
    with pytest.raises(VerifyError, match=f"{Path(file).name} {problem}|{problem}"):
        shards.open_shards(tmp_path / "s")


def edit_manifest(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("key", ["rows", "steps", "num_phases", "num_updates"])
@pytest.mark.parametrize("change", [lambda n: n - 1, lambda n: n + 1, lambda n: 99])
def test_open_shards_edited_count_is_a_verify_error(place, tmp_path, key, change):
    options = {"max_tokens_per_row": 1, "tokens_per_update": 1, "updates_per_phase": 2}
    export(place / "tree", tmp_path / "s", merge="none", **options)
    edit_manifest(tmp_path / "s", lambda manifest: manifest.update({key: change(manifest[key])}))
    problem = {"steps": "hold 13 steps", "rows": "the plan reads row|hold 13 rows"}.get(key, key)
    with pytest.raises(VerifyError, match=problem):
        shards.open_shards(tmp_path / "s")


def swap_rows(updates):
    first, last = updates[0]["rows"][0], updates[-1]["rows"][0]
    first[0], last[0] = last[0], first[0]


PLANS = {
    "another order of rows": (swap_rows, "are not those of the plan: update differs"),
    "a row twice": (
        lambda updates: updates[0]["rows"][0].append(updates[1]["rows"][0][0]),
        "2 times in epoch 0, not once",
    ),
    "a row never": (
        lambda updates: updates[-1]["rows"][0].pop(),
        "does not have as many rows|0 times",
    ),
    "a row that is not there": (
        lambda updates: updates[0]["rows"][0].append(99),
        "reads row 99 1 times in epoch 0, not once",
    ),
    "an update less": (lambda updates: updates.pop(), "num_updates is"),
    "a rank more": (lambda updates: updates[0]["rows"].append([]), "as many rows for each rank"),
    "a phase that comes again": (lambda updates: updates[-1].update(phase=0), "num_phases is"),
    "another epoch": (lambda updates: updates[0].update(epoch=1), "times in epoch"),
    "another stage": (lambda updates: updates[0].update(stage=1), "the stages of the plan"),
}


@pytest.mark.parametrize("name", PLANS)
def test_open_shards_plan_that_was_edited_is_a_verify_error(place, tmp_path, name):
    change, problem = PLANS[name]
    options = {"max_tokens_per_row": 1, "tokens_per_update": 350}
    export(place / "tree", tmp_path / "s", merge="none", **options, updates_per_phase=1)
    edit_manifest(tmp_path / "s", lambda manifest: change(manifest["plan"]["updates"]))
    with pytest.raises(VerifyError, match=problem):
        shards.open_shards(tmp_path / "s")


def test_open_shards_file_with_other_columns_is_a_verify_error(place, tmp_path):
    export(place / "tree", tmp_path / "s")
    file = tmp_path / "s" / shards.part_file(0)
    pq.write_table(pq.read_table(file).drop_columns("token_ids"), file)
    manifest = artefact.read_manifest(tmp_path / "s")
    for entry in manifest["files"]:
        if entry["path"] == shards.part_file(0):
            entry.update(bytes=file.stat().st_size, blake2b=artefact.file_hash(file))
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(VerifyError, match="has other columns"):
        shards.open_shards(tmp_path / "s")


def test_rows_are_arrays_that_torch_takes_without_a_warning(place, tmp_path):
    torch = pytest.importorskip("torch")
    export(place / "tree", tmp_path / "s")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in shards.open_shards(tmp_path / "s").rows():
            assert torch.from_numpy(row.forest.token_ids).dtype == torch.int32


def test_token_ids_are_stored_byte_stream_split_under_zstd(place, tmp_path):
    export(place / "tree", tmp_path / "s")
    with pq.ParquetFile(tmp_path / "s" / shards.part_file(0)) as file:
        group = file.metadata.row_group(0)
        columns = {
            group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)
        }
    tokens = columns["token_ids.list.element"]
    assert "BYTE_STREAM_SPLIT" in tokens.encodings
    assert tokens.compression == "ZSTD"
