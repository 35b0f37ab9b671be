"""What a manifest.json must say, one class per kind of artefact, and whether it agrees with itself.

Manifests are files that people edit and disks damage, so nothing of one is used before it was
decoded here. Keys that no reader needs may be missing from these classes; they are let through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

import clawcli
from clawcli.errors import VerifyError
from clawcli.store import tokenizers

FILE = "manifest.json"
Kind = Literal["tree", "shards", "run"]

_Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of an artefact."""

    path: str
    """Relative to the artefact, with forward slashes."""
    bytes: _Count
    blake2b: str
    """blake2b-256 hex of the content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What every artefact says of itself."""

    claw_version: str
    kind: Kind
    config: dict[str, Any]
    inputs: list[dict[str, Any]]
    files: list[FileEntry]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tokenized(Manifest):
    """An artefact of token ids, which holds the tokenizer that they belong to."""

    tokenizer: str
    """As merge-prefixes was asked for it."""
    vocab_hash: str
    vocab_size: _Positive
    """One past the largest token id."""
    template_hash: str
    eos_token_id: _Count
    """What closes an assistant's turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeCounts:
    """Counts that `claw verify` compares with the files of a tree."""

    steps: _Count
    logical_tokens: _Count
    unique_tokens: _Count


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeManifest(_Tokenized):
    """What a tree says of itself."""

    counts: TreeCounts


@dataclass(frozen=True, slots=True)
class Update:
    """Which packed rows one optimiser step reads."""

    phase: _Count
    stage: _Count
    """Of the curriculum."""
    epoch: _Count
    """Order over the rows of the stage."""
    rows: list[list[_Count]]
    """row_ids of each rank, as many for each; a row that stands again is a filler of weight 0."""

    @property
    def row_ids(self) -> list[int]:
        """Each row once, ascending."""
        return sorted({row for mine in self.rows for row in mine})

    @property
    def fillers(self) -> int:
        """Number of rows that stand again."""
        return sum(map(len, self.rows)) - len(self.row_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageDraw:
    """How the units of one stage were drawn."""

    units: _Positive
    """How many were drawn."""
    threshold: float | None
    """Smallest key that was not drawn; null = all units that could be drawn were."""
    importance_weight_bound: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is trained when."""

    seed: _Count
    unit: Literal["trajectory", "step"]
    beta: float
    """Exponent of importance weights."""
    stages: list[StageDraw]
    epochs: _Positive
    ranks: _Positive
    """Processes for which the rows of updates are split."""
    rank_imbalance_frac: float
    """How much more the dearest rank computes than the mean of all, mean over updates."""
    whole_trajectories: bool
    """Rows that share a trajectory are read in one phase."""
    updates: list[Update]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsCounts:
    """What the report of an export says, for `claw verify`."""

    steps: _Positive
    trajectories: _Positive
    rows: _Positive
    shards: _Positive
    tokens: _Positive
    phases: _Positive
    updates: _Positive
    fillers: _Count
    epochs: _Positive
    ranks: _Positive
    importance_weight_max: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsManifest(_Tokenized):
    """What shards say of themselves."""

    tokenizer_file: Literal["tokenizer.json"]
    num_phases: _Positive
    num_updates: _Positive
    rows: _Positive
    steps: _Positive
    tokens: _Positive
    counts: ShardsCounts
    plan: Plan

    def contradictions(self) -> Iterator[str]:
        """Name what the counts and the plan say differently."""
        updates = self.plan.updates
        if self.num_updates != len(updates):
            yield f"num_updates is {self.num_updates}, the plan has {len(updates)} updates"
        phases = [update.phase for update in updates]
        if phases != sorted(phases) or set(phases) != set(range(self.num_phases)):
            yield f"num_phases is {self.num_phases}, which are not those of the plan's updates"
        for number, update in enumerate(updates):
            counts = set(map(len, update.rows))
            if len(update.rows) != self.plan.ranks or len(counts) != 1 or 0 in counts:
                yield f"update {number} of the plan does not have as many rows for each rank"
                return
        yield from self._miscounted()

    def _miscounted(self) -> Iterator[str]:
        """Name rows that are not read once in each epoch."""
        read: Counter[tuple[int, int]] = Counter()
        stages: dict[int, set[int]] = {}
        for update in self.plan.updates:
            read.update((update.epoch, row) for row in update.row_ids)
            stages.setdefault(update.stage, set()).update(update.row_ids)
        wanted = {(e, row) for e in range(self.plan.epochs) for row in range(self.rows)}
        wrong = sorted(read.keys() ^ wanted) or sorted(key for key, n in read.items() if n != 1)
        if wrong:
            epoch, row = wrong[0]
            yield f"the plan reads row {row} {read[epoch, row]} times in epoch {epoch}, not once"
        if len(stages) != len(self.plan.stages) or sum(map(len, stages.values())) > self.rows:
            yield "the stages of the plan are not those of its updates"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunManifest(Manifest):
    """What a training run says of itself."""

    objective: str
    phases: _Count
    updates: _Count
    vocab_hash: str


M = TypeVar("M", bound=Manifest)


def decode(values: object, kind: type[M], path: Path) -> M:
    """Decode a manifest that was parsed from JSON.

    Args:
        values: the parsed manifest.
        kind: Manifest for what all have in common, or the class of one kind.
        path: the artefact, for the message.

    Raises:
        VerifyError: a key is missing or has a value that cannot be; the message names it.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise VerifyError(
            f"{path / FILE} is not a manifest of claw: {error}.{_other_version(values)}",
            "Make the artefact again.",
        ) from error


def _other_version(values: object) -> str:
    """Say which claw made an artefact, if it is another: it may have been right then."""
    version = values.get("claw_version") if isinstance(values, Mapping) else None
    if not isinstance(version, str) or version == clawcli.__version__:
        return ""
    return f" Claw {version} made it, and this is {clawcli.__version__}."


def is_claws(values: object, kind: str | None = None) -> bool:
    """Tell whether claw wrote a manifest, even one that was damaged since, and of which kind."""
    return (
        isinstance(values, Mapping)
        and {"claw_version", "kind", "files"} <= values.keys()
        and kind in (None, values["kind"])
    )


def load_tokenizer(path: Path, manifest: TreeManifest | ShardsManifest) -> tokenizers.Tokenizer:
    """Load the tokenizer that an artefact holds.

    Raises:
        VerifyError: it is missing, or another one than the manifest says.
        DataError: the file is no tokenizer.
    """
    if tokenizers.FILE not in {entry.path for entry in manifest.files}:
        raise VerifyError(f"{path} holds no {tokenizers.FILE}.", "Make the artefact again.")
    tokenizer = tokenizers.load(str(path / tokenizers.FILE))
    for key in ("vocab_hash", "vocab_size"):
        found, said = getattr(tokenizer, key), getattr(manifest, key)
        if found != said:
            raise VerifyError(
                f"{path}: {tokenizers.FILE} has {key} {found}, the manifest says {said}.",
                "Make the artefact again.",
            )
    if manifest.eos_token_id >= tokenizer.vocab_size:
        raise VerifyError(
            f"{path}: eos_token_id is {manifest.eos_token_id}, but the vocabulary has "
            f"{tokenizer.vocab_size} ids.",
            "Make the artefact again.",
        )
    return tokenizer
