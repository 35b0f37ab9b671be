import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import assistant, system, tau, tool, user

from clawcli import tree
from clawcli.errors import DataError, NotFoundError, VerifyError
from clawcli.export.config import ExportShardsConfig
from clawcli.export.shards import export_shards
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.manage.verify import VerifyConfig, check_tree, verify
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import artefact, shards, trees

MISSING = object()


@pytest.fixture
def place(tmp_path):
    turns = [system("s"), user("u")]
    for answer in "ABC":
        turns += [assistant(answer, calls=[("c", "f", "{}")]), tool("r")]
    (tmp_path / "t.json").write_text(tau([(1, 0, 1.0, turns), (1, 1, 0.0, turns[:-2])]))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    merge_prefixes(
        MergeConfig(input=str(tmp_path / "data"), output=str(tmp_path / "tree"), tokenizer="tiny")
    )
    export(tmp_path, "shards")
    with artefact.create(tmp_path / "run", kind="run", force=False, config={}, inputs=[]) as draft:
        (draft.path / "metrics.jsonl").write_text("{}\n")
        draft.manifest |= {"objective": "sft", "phases": 1, "updates": 1, "vocab_hash": "0"}
    return tmp_path


def export(place, name, **options):
    """Export the tree, a row for each step."""
    paths = {"input": str(place / "tree"), "output": str(place / name)}
    export_shards(ExportShardsConfig(**paths, merge="none", **options))


def edit(path, key, value):
    """Change one key of a manifest, as a hand or a bad disk would."""
    manifest = json.loads((path / "manifest.json").read_text())
    if value is MISSING:
        del manifest[key]
    else:
        manifest[key] = value
    (path / "manifest.json").write_text(json.dumps(manifest))


def run(path):
    return verify(VerifyConfig(input=str(path)))


def rewrite(path, file, change):
    """Change one file of an artefact and its manifest entry, as a bug in claw would."""
    change(path / file)
    manifest = json.loads((path / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["path"] == file:
            entry["bytes"] = (path / file).stat().st_size
            entry["blake2b"] = artefact.file_hash(path / file)
    manifest["own_blake2b"] = artefact.own_hash(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def set_column(name, change):
    def apply(file):
        table = pq.read_table(file)
        field = table.schema.field(name)
        values = pa.array([change(value) for value in table[name].to_pylist()], field.type)
        pq.write_table(table.set_column(table.schema.get_field_index(name), field, values), file)

    return apply


def test_verify_intact_artefacts_reports_what_was_checked(place):
    report = run(place / "tree")
    assert (report.kind, report.files, report.steps) == ("tree", 3, 5)
    report = run(place / "shards")
    assert (report.kind, report.files, report.steps) == ("shards", 2, 5)


@pytest.mark.parametrize("name", ["tree", "shards"])
def test_verify_every_flipped_byte_is_found(place, name):
    path = place / name
    for file in [p for p in path.rglob("*") if p.is_file() and p.name != "manifest.json"]:
        content = file.read_bytes()
        middle = len(content) // 2
        damaged = bytes([content[middle] ^ 1])
        file.write_bytes(content[:middle] + damaged + content[middle + 1 :])
        with pytest.raises(VerifyError, match=f"{file.name} has other content"):
            run(path)
        file.write_bytes(content)
    run(path)


def test_verify_missing_cut_and_foreign_files_are_found(place):
    path = place / "tree"
    (path / "extra").write_text("x")
    content = (path / trees.PATHS_FILE).read_bytes()
    (path / trees.PATHS_FILE).write_bytes(content[:-1])
    (path / trees.NODES_FILE).unlink()
    with pytest.raises(VerifyError) as found:
        run(path)
    for problem in ("extra is not in the manifest", "nodes/part-00000.parquet is missing", "bytes"):
        assert problem in str(found.value)


@pytest.mark.parametrize(
    ("column", "change", "problem"),
    [
        ("row_hash", lambda value: "0" * 32, "has another row"),
        ("row_tokens", lambda value: value + 1, "has another row"),
        ("end_node_id", lambda value: 10**6, "which does not exist"),
        ("response_end", lambda value: value + 1, "is not inside its"),
        ("response_start", lambda value: 0, "is not inside its"),
        ("rollout_logprobs", lambda value: [-1.0], "1 log-probs for"),
        ("loss_weight", lambda value: 0.0, "logical_tokens is 0"),
    ],
)
def test_verify_tree_path_that_promises_otherwise_is_found(place, column, change, problem):
    rewrite(place / "tree", trees.PATHS_FILE, set_column(column, change))
    with pytest.raises(VerifyError, match=problem):
        run(place / "tree")


def test_verify_tree_step_with_two_paths_would_be_trained_twice(place):
    first, second, *_ = pq.read_table(place / "tree" / trees.PATHS_FILE)["step_uid"].to_pylist()
    change = set_column("step_uid", lambda uid: first if uid == second else uid)
    rewrite(place / "tree", trees.PATHS_FILE, change)
    with pytest.raises(VerifyError, match=f"step {first} has 2 paths"):
        run(place / "tree")


def test_verify_tree_of_another_version_says_whose_it_is(place):
    edit(place / "tree", "vocab_hash", MISSING)
    edit(place / "tree", "claw_version", "0.0.1")
    with pytest.raises(VerifyError, match=r"`vocab_hash`.* Claw 0\.0\.1 made it, and this is "):
        run(place / "tree")


def test_check_tree_of_ten_thousand_levels_walks_once():
    levels = 10_000
    forest = tree.Forest(
        np.arange(levels, dtype=np.int32),
        np.arange(levels, dtype=np.int32),
        np.arange(-1, levels - 1, dtype=np.int32),
    )
    hashes = [trees.row_hash(np.arange(end + 1)) for end in range(levels)]
    hashes[5000] = "0" * 32
    paths = pa.table(
        {
            "step_uid": [str(end) for end in range(levels)],
            "end_node_id": np.arange(levels, dtype=np.int32),
            "row_tokens": np.arange(1, levels + 1),
            "row_hash": hashes,
            "response_start": np.arange(levels),
            "response_end": np.arange(1, levels + 1),
            "rollout_logprobs": pa.nulls(levels, pa.list_(pa.float32())),
            "loss_weight": np.ones(levels),
        }
    )
    counts = SimpleNamespace(
        steps=levels, logical_tokens=levels * (levels + 1) // 2, unique_tokens=levels
    )
    found = check_tree(trees.Tree(Path(), SimpleNamespace(counts=counts), forest, paths))
    # the first step's action would begin its row
    assert found == [
        "step 0: its span 0..1 is not inside its 1 tokens",
        "step 5000 has another row than the one that was merged",
    ]


def test_verify_tree_node_with_another_token_is_found(place):
    def first_token(value):
        return [value[0] + 1, *value[1:]]

    rewrite(place / "tree", trees.NODES_FILE, set_column("token_ids", first_token))
    with pytest.raises(VerifyError, match="has another row"):
        run(place / "tree")


@pytest.mark.parametrize(
    ("tokens", "parents", "problem"),
    [
        ([1, 2, 2], [-1, 0, 0], "two siblings start with the same token"),
        ([1, 2, 3, 4], [-1, -1, 1, 0], "not in depth-first pre-order"),
        ([1, 2], [-1, 1], "not in depth-first pre-order"),
    ],
)
def test_check_tree_forest_of_another_shape_is_found(place, tokens, parents, problem):
    good = trees.read(place / "tree")
    forest = tree.Forest(
        np.int32(tokens), np.arange(len(tokens), dtype=np.int32), np.int32(parents)
    )
    assert problem in check_tree(trees.Tree(good.path, good.manifest, forest, good.paths))[0]


def steps_changed(**changes):
    def apply(steps):
        return [{**step, **{k: change(step[k]) for k, change in changes.items()}} for step in steps]

    return set_column("steps", apply)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (steps_changed(segment=lambda value: 99), "names segment 99"),
        (steps_changed(response_end=lambda value: 10**6), "is not inside its"),
        (steps_changed(step_uid=lambda value: "same"), "step same stands 5 times"),
        (steps_changed(next_step=lambda value: 99), "its next step is not at"),
        (set_column("steps", lambda value: value[:-1]), "hold 4 steps, the manifest says 5"),
        (set_column("update", lambda value: value + 1), "are not those of the plan"),
        (set_column("row_id", lambda value: value + 1), "are not those of the plan"),
        (set_column("phase", lambda value: None), "a row with a null"),
        (set_column("token_ids", lambda value: value[:-1]), "its cost is"),
        (set_column("cost", lambda value: value + 1), "its cost is"),
        (steps_changed(weight=lambda value: 0.5), "weight is 0.5, not 1.0"),
        (steps_changed(loss_weight=lambda value: 0.5), "weight is 1.0, not 0.5"),
        (steps_changed(pi=lambda value: 0.5), "pi is 0.5, not 1.0"),
        (steps_changed(rollout_logprobs=lambda value: []), "it has 0 log-probs for"),
        (steps_changed(sampling_weight=lambda value: 0.0), "sampling_weight is 0.0"),
        (steps_changed(sampling_weight=lambda value: float("inf")), "sampling_weight is inf"),
        (set_column("token_ids", lambda value: [1024, *value[1:]]), "beyond the 1024 of the voc"),
        (steps_changed(trajectory_uid=lambda value: "x"), "holds 1 units, the plan says"),
        (set_column("token_ids", lambda value: None), "a row with a null"),
    ],
)
def test_verify_shards_that_leave_the_plan_are_found(place, change, problem):
    rewrite(place / "shards", shards.part_file(0), change)
    with pytest.raises(VerifyError) as found:
        run(place / "shards")
    assert problem in str(found.value)


@pytest.fixture
def sampled(place):
    """Shards of three of the five steps, for two ranks."""
    drawn = {"sample": "3", "unit": "step", "priority": "1 + step_index"}
    export(place, "sampled", max_tokens_per_row=1, ranks=2, **drawn)
    assert run(place / "sampled").steps == 3
    return place / "sampled"


def plan_changed(path, change):
    plan = json.loads((path / "manifest.json").read_text())["plan"]
    change(plan)
    edit(path, "plan", plan)


PLAN_PROBLEMS = {
    "seed": (lambda plan: plan.update(seed=1), "was not drawn in stage 0 with seed 1"),
    "unit": (lambda plan: plan.update(unit="trajectory"), "2 units|was not drawn"),
    "units": (lambda plan: plan["stages"][0].update(units=4), "holds 3 units, the plan says 4"),
    "threshold": (
        lambda plan: plan["stages"][0].update(threshold=plan["stages"][0]["threshold"] * 2),
        "pi is",
    ),
    "no threshold": (lambda plan: plan["stages"][0].update(threshold=None), "pi is .*, not 1.0"),
    "beta": (lambda plan: plan.update(beta=0.5), "weight is"),
    "bound": (
        lambda plan: plan["stages"][0].update(importance_weight_bound=1.0),
        "a weight of stage 0 exceeds its bound",
    ),
    "balance": (lambda plan: plan.update(rank_imbalance_frac=0.0), "rank_imbalance_frac is"),
    "another split": (
        lambda plan: [u["rows"].reverse() or u["rows"][0].reverse() for u in plan["updates"]],
        "own hash differs",
    ),
}


@pytest.mark.parametrize("name", PLAN_PROBLEMS)
def test_verify_draws_and_weighs_again(sampled, name):
    change, problem = PLAN_PROBLEMS[name]
    plan_changed(sampled, change)
    with pytest.raises(VerifyError, match=problem):
        run(sampled)


def test_verify_finds_a_trajectory_in_two_phases_where_none_may_be(place):
    export(place, "scattered", max_tokens_per_row=1, updates_per_phase=1)
    assert run(place / "scattered").steps == 5
    plan_changed(place / "scattered", lambda plan: plan.update(whole_trajectories=True))
    with pytest.raises(VerifyError, match="is read in several phases of epoch 0"):
        run(place / "scattered")


@pytest.mark.parametrize("name", ["tree", "shards", "run"])
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("files", [{}], r"missing required field `path`"),
        ("files", None, r"Expected `array`, got `null`"),
        ("files", [{"path": "x", "bytes": 1, "blake2b": None}], "Expected `str`"),
        ("files", MISSING, "missing required field `files`"),
        ("kind", MISSING, "missing required field `kind`"),
        ("kind", 3, r"\$\.kind"),
        ("kind", "data", "Invalid enum value 'data'"),
        ("vocab_hash", MISSING, "missing required field `vocab_hash`"),
        ("vocab_hash", ["x"], "Expected `str`"),
    ],
)
def test_verify_edited_manifest_is_one_sentence(place, name, key, value, problem):
    edit(place / name, key, value)
    with pytest.raises(VerifyError, match=f"is not a manifest of claw.*{problem}"):
        run(place / name)


@pytest.mark.parametrize(
    ("name", "key", "value", "problem"),
    [
        ("tree", "counts", MISSING, "missing required field `counts`"),
        ("tree", "counts", {"steps": 5}, "missing required field"),
        ("tree", "eos_token_id", 10**6, "eos_token_id is 1000000, but the vocabulary"),
        ("tree", "eos_token_id", -1, r"Expected `int` >= 0 - at `\$\.eos_token_id`"),
        ("tree", "eos_token_id", 10**30, "eos_token_id"),
        ("tree", "vocab_size", 7, "has vocab_size 1024, the manifest says 7"),
        ("shards", "plan", MISSING, "missing required field `plan`"),
        ("shards", "plan", {"updates": []}, "missing required field"),
        ("shards", "num_phases", 99, "num_phases is 99"),
        ("shards", "eos_token_id", 10**6, "eos_token_id is 1000000, but the vocabulary"),
        ("shards", "tokenizer_file", "nope", "Invalid enum value 'nope'"),
        ("shards", "tokens", 1, "the manifest says 1"),
        ("shards", "counts", {}, "missing required field"),
        ("shards", "vocab_hash", "0", "the manifest says 0"),
        ("run", "updates", None, "Expected `int`, got `null`"),
    ],
)
def test_verify_manifest_that_contradicts_the_files_is_found(place, name, key, value, problem):
    edit(place / name, key, value)
    with pytest.raises(VerifyError, match=problem):
        run(place / name)


@pytest.mark.parametrize("text", ["", "\xff", "null", "[" * 100_000, '{"kind": "tree"}'])
def test_verify_manifest_that_is_no_manifest_is_one_sentence(place, text):
    (place / "tree" / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(VerifyError, match=r"is not JSON|is not a manifest"):
        run(place / "tree")


def test_verify_manifest_with_unknown_keys_passes(place):
    manifest = json.loads((place / "tree" / "manifest.json").read_text())
    manifest["added_later"] = {"x": 1}
    manifest["own_blake2b"] = artefact.own_hash(manifest)
    (place / "tree" / "manifest.json").write_text(json.dumps(manifest))
    assert run(place / "tree").kind == "tree"


@pytest.mark.parametrize("name", ["tree", "shards", "run"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("claw_version", "9.9"),
        ("config", {"seed": 7}),
        ("inputs", [{"kind": "x"}]),
        ("own_blake2b", MISSING),
    ],
)
def test_verify_finds_a_hand_at_the_manifest_that_contradicts_nothing(place, name, key, value):
    edit(place / name, key, value)
    with pytest.raises(VerifyError, match="is not as it was written: its own hash differs"):
        run(place / name)


def test_verify_tokenizer_of_another_vocabulary_is_found(place):
    def swap(file):
        value = json.loads(file.read_text())
        vocab = value["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
        file.write_text(json.dumps(value))

    rewrite(place / "tree", "tokenizer.json", swap)
    with pytest.raises(VerifyError, match=r"tokenizer\.json has vocab_hash"):
        run(place / "tree")


def test_verify_run_compares_its_files(place):
    report = run(place / "run")
    assert (report.kind, report.files, report.steps, report.tokens) == ("run", 1, None, None)


def test_verify_what_is_no_artefact_is_refused(place):
    with pytest.raises(NotFoundError):
        run(place / "none")
    with pytest.raises(DataError, match="is a data directory"):
        run(place / "data")
    (place / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        run(place / "empty")


COUNTS = (
    "steps",
    "trajectories",
    "rows",
    "shards",
    "tokens",
    "phases",
    "updates",
    "epochs",
    "ranks",
)


@pytest.mark.parametrize("key", [*COUNTS, "fillers", "importance_weight_max"])
def test_verify_compares_the_report_in_the_manifest(place, key):
    manifest = json.loads((place / "shards" / "manifest.json").read_text())
    manifest["counts"][key] += 1
    manifest["own_blake2b"] = artefact.own_hash(manifest)
    (place / "shards" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(VerifyError, match=f"{key} is .* report in the manifest says"):
        run(place / "shards")
