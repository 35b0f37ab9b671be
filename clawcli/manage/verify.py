"""`claw verify`: is an artefact what its manifest says, and does it hold what it promises?

Every artefact: each file's size and hash. A tree: every row is rebuilt from its nodes and compared
with the hash that was taken before merging. Shards: see verify_shards.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clawcli.errors import VerifyError
from clawcli.manage.verify_shards import check_forest, check_shards, check_span
from clawcli.store import artefact, shards, trees
from clawcli.store.manifest import RunManifest, decode, load_tokenizer

_BATCH = 1024
_SHOWN = 5
"""Problems that the message names; a damaged artefact has as many as it has rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """What `claw verify` is asked for."""

    input: str
    """Directory of a tree, shards or a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """What `claw verify` compared, all of it equal."""

    kind: str
    """tree, shards or run."""
    files: int
    """Files whose size and hash were compared."""
    bytes: int
    """Their size together."""
    steps: int | None
    """Steps whose row or place was checked; null for a run."""
    tokens: int | None
    """Tokens of the tree or of the packed rows; null for a run."""


def verify(config: VerifyConfig) -> VerifyReport:
    """Compare an artefact with its manifest and check what it holds.

    Raises:
        NotFoundError: the directory is missing.
        DataError: it is no artefact.
        VerifyError: something differs; the message names the first of it.
    """
    path = Path(config.input)
    values = artefact.read_manifest(path)
    kind = values["kind"]
    steps = tokens = None
    problems: list[str] = []
    if kind == trees.KIND:
        tree = trees.read(path)
        load_tokenizer(path, tree.manifest)
        problems = check_tree(tree)
        manifest, steps, tokens = tree.manifest, len(tree.paths), len(tree.forest.token_ids)
    elif kind == shards.KIND:
        opened = shards.open_shards(path)
        load_tokenizer(path, opened.manifest)
        problems = check_shards(opened)
        manifest, steps, tokens = opened.manifest, opened.manifest.steps, opened.manifest.tokens
    else:
        manifest = decode(artefact.verify_files(path), RunManifest, path)
    if values.get(artefact.OWN_HASH) != artefact.own_hash(values):
        problems = [
            *problems,
            f"{artefact.MANIFEST} is not as it was written: its own hash differs",
        ]
    if problems:
        shown = "; ".join(problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise VerifyError(f"{path}: {shown}{more}.", "Make the artefact again.")
    return VerifyReport(
        kind=kind,
        files=len(manifest.files),
        bytes=sum(entry.bytes for entry in manifest.files),
        steps=steps,
        tokens=tokens,
    )


def check_tree(tree: trees.Tree) -> list[str]:
    """Rebuild every row of a tree and say what differs from what its path promises."""
    problems = check_forest(tree.forest)
    if problems:
        return problems
    columns = ("step_uid", "end_node_id", "row_tokens", "row_hash")
    spans = ("response_start", "response_end", "rollout_logprobs", "loss_weight")
    paths = tree.paths.select([*columns, *spans])
    ends = tree.end_nodes()
    exists = (ends >= 0) & (ends < len(tree.forest.segment_starts))
    problems += [
        f"step {path['step_uid']} ends at node {path['end_node_id']}, which does not exist"
        for path in paths.filter(pa.array(~exists)).to_pylist()
    ]
    uids = Counter(paths["step_uid"].to_pylist())
    problems += [f"step {uid} has {count} paths" for uid, count in uids.items() if count > 1]
    sound = paths.filter(pa.array(exists)).sort_by("end_node_id")
    walk = enumerate(tree.forest.rows())
    node, row, row_hash = -1, np.empty(0, np.int32), ""
    for path in (each for batch in sound.to_batches(_BATCH) for each in batch.to_pylist()):
        if node != path["end_node_id"]:
            node, row = next(step for step in walk if step[0] == path["end_node_id"])
            row_hash = trees.row_hash(row)
        name = f"step {path['step_uid']}"
        if len(row) != path["row_tokens"] or row_hash != path["row_hash"]:
            problems.append(f"{name} has another row than the one that was merged")
        logprobs = path["rollout_logprobs"]
        num_logprobs = None if logprobs is None else len(logprobs)
        span = path["response_start"], path["response_end"]
        wrong = check_span(*span, len(row), num_logprobs)
        problems += [f"{name}: {what}" for what in wrong]
    trained = np.nan_to_num(paths["loss_weight"].to_numpy()) > 0
    logical = int(tree.forest.row_lengths()[ends[exists & trained]].sum(dtype=np.int64))
    counts = tree.manifest.counts
    for key, found in (
        ("steps", len(tree.paths)),
        ("logical_tokens", logical),
        ("unique_tokens", len(tree.forest.token_ids)),
    ):
        said = getattr(counts, key)
        if said != found:
            problems.append(f"{key} is {found}, the manifest says {said}")
    return problems
