"""`claw verify`: is an artefact what its manifest says, and does it hold what it promises?

Every artefact: each file's size and hash. A tree: every row is rebuilt from its nodes and compared
with the hash that was taken before merging. Shards: every step stands in the plan once, and its
span lies on the path of its segment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clawcli.errors import VerifyError
from clawcli.store import artefact, shards, trees
from clawcli.store.manifest import RunManifest, decode, load_tokenizer
from clawcli.tree import Forest, is_action_span

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
    kind = artefact.read_manifest(path)["kind"]
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
    problems = _check_forest(tree.forest)
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
        problems += [f"{name}: {what}" for what in _check_span(path, len(row))]
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


def check_shards(opened: shards.Shards) -> list[str]:
    """Read all packed rows and say what is wrong with steps, spans, links and tokens.

    That rows stand where the plan wants them was checked when the shards were opened.
    """
    problems: list[str] = []
    seen: Counter[str] = Counter()
    places: dict[tuple[int, int], tuple[Any, Any]] = {}
    links: list[tuple[str, tuple[int, int], tuple[Any, Any]]] = []
    tokens = 0
    for row in opened.rows():
        name = f"row {row.row_id}"
        problems += [f"{name}: {what}" for what in _check_forest(row.forest, siblings=False)]
        depths = row.forest.row_lengths()
        for index, step in enumerate(row.steps):
            uid = step["step_uid"]
            seen[uid] += 1
            places[row.row_id, index] = step["trajectory_uid"], step["step_index"]
            if step["next_row"] is not None:
                wanted = step["trajectory_uid"], step["step_index"] + 1
                links.append((uid, (step["next_row"], step["next_step"]), wanted))
            if not 0 <= step["segment"] < len(depths):
                problems.append(f"{name}: step {uid} names segment {step['segment']}")
                continue
            found = _check_span(step, int(depths[step["segment"]]))
            problems += [f"{name}: step {uid}: {what}" for what in found]
        tokens += len(row.forest.token_ids)
    problems += [f"step {uid} stands {n} times" for uid, n in seen.items() if n != 1]
    problems += [
        f"step {uid}: its next step is not at {place}"
        for uid, place, wanted in links
        if places.get(place) != wanted
    ]
    if tokens != opened.manifest.tokens:
        problems.append(f"tokens is {tokens}, the manifest says {opened.manifest.tokens}")
    return problems


def _check_forest(forest: Forest, *, siblings: bool = True) -> list[str]:
    starts, parents = forest.segment_starts, forest.segment_parents
    if not len(starts) or starts[0] != 0 or np.any(np.diff(starts) <= 0):
        return ["the segments are not cut in order"]
    if starts[-1] >= len(forest.token_ids) or not _is_pre_order(parents.tolist()):
        return ["the segments are not in depth-first pre-order"]
    if siblings:
        begins = np.stack([parents, forest.token_ids[starts]], axis=1)
        if len(np.unique(begins, axis=0)) < len(begins):
            return ["two siblings start with the same token"]
    return []


def _is_pre_order(parents: list[int]) -> bool:
    """Tell whether each segment continues one on the path to the segment before it."""
    path: list[int] = []
    for segment, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        if not path and parent != -1:
            return False
        path.append(segment)
    return True


def _check_span(step: dict[str, Any], row_tokens: int) -> list[str]:
    start, end = step["response_start"], step["response_end"]
    logprobs = step["rollout_logprobs"]
    problems = []
    if not is_action_span(start, end, row_tokens):
        problems.append(f"its span {start}..{end} is not inside its {row_tokens} tokens")
    if logprobs is not None and len(logprobs) != end - start:
        problems.append(f"it has {len(logprobs)} log-probs for {end - start} tokens")
    return problems
