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

from clawcli.errors import VerifyError
from clawcli.store import artefact, shards, tokenizers, trees
from clawcli.tree import Forest

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
        DataError: it has no manifest.
        VerifyError: something differs; the message names the first of it.
    """
    path = Path(config.input)
    manifest = artefact.verify_files(path)
    kind = manifest["kind"]
    steps = tokens = None
    problems: list[str] = []
    if kind == trees.KIND:
        tree = trees.read(path)
        problems = check_tree(tree)
        steps, tokens = len(tree.paths), len(tree.forest.token_ids)
    elif kind == shards.KIND:
        opened = shards.open_shards(path)
        problems = check_shards(opened)
        steps, tokens = manifest["steps"], manifest["tokens"]
    if kind in (trees.KIND, shards.KIND):
        found = tokenizers.load(str(path)).vocab_hash
        if found != manifest["vocab_hash"]:
            problems.append(f"tokenizer.json has vocab_hash {found}, not {manifest['vocab_hash']}")
    if problems:
        shown = "; ".join(problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise VerifyError(f"{path}: {shown}{more}.", "Make the artefact again.")
    return VerifyReport(
        kind=kind,
        files=len(manifest["files"]),
        bytes=sum(entry["bytes"] for entry in manifest["files"]),
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
    logical = 0
    for path in tree.paths.select([*columns, *spans]).to_pylist():
        name = f"step {path['step_uid']}"
        if not 0 <= path["end_node_id"] < len(tree.forest.segment_starts):
            problems.append(f"{name} ends at node {path['end_node_id']}, which does not exist")
            continue
        row = tree.forest.row(path["end_node_id"])
        if len(row) != path["row_tokens"] or trees.row_hash(row) != path["row_hash"]:
            problems.append(f"{name} has another row than the one that was merged")
        problems += [f"{name}: {what}" for what in _check_span(path, len(row))]
        logical += len(row) if (path["loss_weight"] or 0) > 0 else 0
    counts = tree.manifest["counts"]
    for key, found in (
        ("steps", len(tree.paths)),
        ("logical_tokens", logical),
        ("unique_tokens", len(tree.forest.token_ids)),
    ):
        if counts[key] != found:
            problems.append(f"{key} is {found}, the manifest says {counts[key]}")
    return problems


def check_shards(opened: shards.Shards) -> list[str]:
    """Read all packed rows and say what differs from the plan."""
    problems: list[str] = []
    seen: Counter[str] = Counter()
    per_update: Counter[int] = Counter()
    places: dict[tuple[int, int], tuple[Any, Any]] = {}
    links: list[tuple[str, tuple[int, int], tuple[Any, Any]]] = []
    rows = tokens = 0
    for row in opened.rows():
        name = f"row {rows}"
        if row.row_id != rows or row.phase != row.update // opened.manifest["updates_per_phase"]:
            problems.append(f"{name} is row {row.row_id} of update {row.update}: not in its place")
        problems += [f"{name}: {what}" for what in _check_forest(row.forest, siblings=False)]
        depths = row.forest.segment_depths() + row.forest.segment_ends - row.forest.segment_starts
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
        per_update[row.update] += 1
        rows += 1
        tokens += len(row.forest.token_ids)
    problems += [f"step {uid} stands {n} times" for uid, n in seen.items() if n != 1]
    problems += [
        f"step {uid}: its next step is not at {place}"
        for uid, place, wanted in links
        if places.get(place) != wanted
    ]
    plan = opened.manifest["plan"]["rows_per_update"]
    if [per_update[update] for update in range(len(plan))] != plan or sum(plan) != rows:
        problems.append("the rows of the updates are not those of the plan")
    for key, count in (("rows", rows), ("steps", len(seen)), ("tokens", tokens)):
        if opened.manifest[key] != count:
            problems.append(f"{key} is {count}, the manifest says {opened.manifest[key]}")
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
    if not 0 < start < end <= row_tokens:
        problems.append(f"its span {start}..{end} is not inside its {row_tokens} tokens")
    if logprobs is not None and len(logprobs) != end - start:
        problems.append(f"it has {len(logprobs)} log-probs for {end - start} tokens")
    return problems
