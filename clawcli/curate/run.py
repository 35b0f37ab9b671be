"""Curate: keep the steps that match, what they need as context, and the reason for all else.

The output is a data directory again. Kept steps keep their weight, their ancestors stay with weight
0, all else goes, counted by the clause that dropped it. Returns and group statistics are frozen: the
first curation writes them as its input had them, because keeping the successes alone would
otherwise make every advantage zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta

from clawcli import sampling, schema
from clawcli.config import to_dict
from clawcli.curate import contamination, duplicates, limits, selection, split
from clawcli.curate.selection import Entry, Selection
from clawcli.curate.write import write
from clawcli.errors import UsageError
from clawcli.store import (
    arrow,
    artefact,
    derived,
    expressions,
    location,
    query,
    registry,
    rewards,
    sidecars,
    units,
)
from clawcli.store.expressions import Expression
from clawcli.store.frame import Frame
from clawcli.store.units import Unit

_Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurateConfig:
    """What to keep and where to put it. Null = not asked for."""

    input: str
    """Data directory, also as data@version."""
    output: str
    """Data directory to create; with split, a folder of several."""
    where: str | None = None
    """Boolean SQL expression over one step's columns."""
    where_trajectory: str | None = None
    """The same over the steps of one trajectory; it may use aggregates."""
    where_group: str | None = None
    """The same over the trajectories of one group."""
    max_staleness: Annotated[int, Meta(ge=0)] | None = None
    """Most versions that a step's policy may be behind the newest of its kind."""
    decontaminate: str | None = None
    """File of task ids or prompts of evaluations, whose attempts go."""
    dedupe: Literal["response", "state", "trajectory", "near"] | None = None
    """What may not be there twice."""
    limit_per_group: _Positive | None = None
    """Most units of one group: the best by top_by, else drawn."""
    top_k: _Positive | None = None
    """How many units to keep, the best by top_by."""
    top_by: str | None = None
    """Numeric SQL expression that units are ranked by, the highest first."""
    sample: str | None = None
    """How many units to draw: a number, or a share such as 0.1, for each unit by itself."""
    seed: int = 0
    """Of all draws."""
    unit: Unit = "trajectory"
    """What top_k, sample and limit_per_group count."""
    reward_expr: str | None = None
    """Numeric SQL expression that becomes the reward of each attempt, before all else."""
    assign: str | None = None
    """reward=EXPRESSION: becomes the reward of each step, after all else."""
    regroup: bool = False
    """Compute returns and group statistics over the rows of the output."""
    split: str | None = None
    """NAME=SHARE,...: data directories OUTPUT/NAME."""
    split_by: str = "group_uid"
    """Column whose equal values go to one split."""
    force: bool = False
    """Replace a data directory that is there."""
    dry_run: bool = False
    """Count, write nothing."""
    where_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Seconds after which an expression is stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurateReport:
    """Counts of steps: kept + context + those that clauses dropped = in."""

    steps_in: int
    steps_kept: int
    """With their weight."""
    steps_context: int
    """Ancestors of kept steps, with weight 0."""
    steps_null: int
    """Steps for which --where is NULL, which is not true."""
    steps_dropped_by_clause: dict[str, int]
    """where: it is false; where_null: it is NULL; loss_weight: matched, but not for training; and
    so on. Each step counts once, where it was dropped first."""
    steps_context_by_clause: dict[str, int]
    """Of the context, which clause it would have been dropped by."""
    steps_kept_by_split: dict[str, int]
    """Empty without --split."""
    trajectories_kept: int
    groups_kept: int
    table_version: int | None
    ledger: tuple[Entry, ...] = ()
    """What each clause was asked and dropped, in their order; it is stored with the output."""


def curate(config: CurateConfig) -> CurateReport:
    """Write the steps of an input that all clauses keep, and their ancestors.

    Raises:
        NotFoundError: the input is not there.
        UsageError: flags do not go together.
        WhereError: an expression is no single expression of its kind over the columns.
        DataError: rewards are to be chosen, and what the input was curated from is gone.
        OutputExistsError: the output is there and force is off.
    """
    shares = _checked(config)
    source = location.existing(config.input)
    output = location.local(location.whole(config.output).path)
    artefact.check_apart(output, source.on_disk)
    artefact.check_free(output, force=config.force, ours=_is_ours)
    frame = Frame(source)
    if config.reward_expr is not None:
        chosen = _expression(config, "--reward-expr", config.reward_expr)
        rewards.choose(frame, lambda f: rewards.by_attempt(f, chosen), at_hand=config.regroup)
    kept = _select(frame, config)
    of_split = split.divide(frame, shares, config.split_by, config.seed) if shares else None
    if config.assign is not None:
        _assign(frame, config, kept.left & (of_split == 0) if of_split is not None else kept.left)
    parts = _parts(kept.left, of_split, shares)
    contexts = {name: selection.context(part, frame.parents) for name, part in parts.items()}
    context = np.logical_or.reduce(list(contexts.values())) & ~kept.left
    ledger = kept.ledger(context)
    if not config.dry_run:
        info = {
            "command": "curate",
            "config": to_dict(config),
            "inputs": [sidecars.describe(source, frame.version)],
            "ledger": [asdict(entry) for entry in ledger],
        }
        with artefact.replacing(output, force=config.force, ours=_is_ours) as temporary:
            temporary.mkdir()
            for name, part in parts.items():
                place = temporary / name if name else temporary
                place.mkdir(exist_ok=True)
                _write(frame, part, contexts[name], place, info, regroup=config.regroup)
        for name in parts:
            written = output / name if name else output
            registry.add(source, written, kind="data", version=frame.version)
    return CurateReport(
        steps_in=frame.num_rows,
        steps_kept=int(kept.left.sum()),
        steps_context=int(context.sum()),
        steps_null=kept.num_null,
        steps_dropped_by_clause={e.clause: e.steps - e.steps_context for e in ledger},
        steps_context_by_clause={e.clause: e.steps_context for e in ledger if e.steps_context},
        steps_kept_by_split={name: int(part.sum()) for name, part in parts.items() if name},
        trajectories_kept=len(np.unique(frame.order.trajectory[kept.left])),
        groups_kept=len(np.unique(frame.groups[kept.left])),
        table_version=None if config.dry_run else 0,
        ledger=tuple(ledger),
    )


def _checked(config: CurateConfig) -> dict[str, float]:
    """Check what flags ask for together; returns the shares of splits."""
    asked = (
        config.where,
        config.where_trajectory,
        config.where_group,
        config.max_staleness,
        config.decontaminate,
        config.dedupe,
        config.limit_per_group,
        config.top_k,
        config.top_by,
        config.sample,
        config.reward_expr,
        config.assign,
        config.split,
    )
    if all(clause is None for clause in asked):
        raise UsageError(
            "Nothing is asked for.", "Give --where, or another clause: claw curate --help."
        )
    if config.top_k is not None and config.top_by is None:
        raise UsageError("--top-k needs --top-by.", "Say by what: --top-by trajectory_return.")
    if config.top_by is not None and config.top_k is None and config.limit_per_group is None:
        raise UsageError("--top-by ranks, but nothing is limited.", "Give --top-k.")
    if config.assign is not None:
        rewards.parse_assignment(config.assign)
    if config.sample is not None:
        sampling.parse_amount(config.sample)
    return split.parse(config.split) if config.split is not None else {}


def _is_ours(path: Path) -> bool:
    """Tell whether a path holds nothing but what curate writes: one data directory, or splits."""
    if location.is_data(path):
        return True
    inside = list(path.iterdir()) if path.is_dir() else []
    return bool(inside) and all(location.is_data(one) for one in inside)


def _expression(config: CurateConfig, flag: str, text: str) -> Expression:
    return Expression(text=text, flag=flag, timeout_s=config.where_timeout_s)


# -- which steps -----------------------------------------------------------------------------------


def _select(frame: Frame, config: CurateConfig) -> Selection:
    """Apply all clauses, one after the other."""
    kept = Selection(frame.num_rows)
    if config.where is not None:
        expression = _expression(config, "--where", config.where)
        found = expressions.each(frame, expression)
        kept.num_null = found.null_count
        kept.keep_true(found, "where", config.where)
    weights = frame.keys["loss_weight"].fill_null(0.0).to_numpy()
    kept.keep(weights > 0, "loss_weight", "loss_weight > 0")
    if (text := config.where_trajectory) is not None:
        found = units.of_trajectories(frame, _expression(config, "--where-trajectory", text))
        kept.keep_true(found, "where_trajectory", text)
    if (text := config.where_group) is not None:
        found = units.of_groups(frame, _expression(config, "--where-group", text))
        kept.keep_true(found, "where_group", text)
    if (most := config.max_staleness) is not None:
        found = arrow.less_equal(frame.column("staleness_versions"), most)
        kept.keep_true(found, "max_staleness", str(most))
    if (path := config.decontaminate) is not None:
        kept.keep(contamination.clean(frame, contamination.read(path)), "decontaminate", path)
    if (kind := config.dedupe) is not None:
        kept.keep(duplicates.originals(frame, kept.left, kind), "dedupe", kind)
    _limit(frame, config, kept)
    return kept


def _limit(frame: Frame, config: CurateConfig, kept: Selection) -> None:
    """Apply the clauses that count units."""
    if config.limit_per_group is None and config.top_k is None and config.sample is None:
        return
    members = units.members(frame, config.unit)
    scores = None
    if config.top_by is not None:
        scores = units.scores(frame, _expression(config, "--top-by", config.top_by), config.unit)
    if (most := config.limit_per_group) is not None:
        rank = limits.draws(members, config.seed) if scores is None else -scores
        chosen = limits.at_most(members, members.left(kept.left), frame, most, rank)
        kept.keep(chosen[members.of_step], "limit_per_group", str(most))
    if config.top_k is not None and scores is not None:
        chosen, is_known = limits.best(members, members.left(kept.left), scores, config.top_k)
        detail = f"{config.top_k} by {config.top_by}"
        kept.keep((chosen | ~is_known)[members.of_step], "top_k", detail)
        kept.keep(is_known[members.of_step], "top_k_null", detail)
    if config.sample is not None:
        amount, is_share = sampling.parse_amount(config.sample)
        left = members.left(kept.left)
        chosen = limits.drawn(members, left, amount, config.seed, is_share=is_share)
        kept.keep(chosen[members.of_step], "sample", f"{config.sample} with seed {config.seed}")


def _assign(frame: Frame, config: CurateConfig, train: np.ndarray) -> None:
    """Give steps other rewards, with statistics of the train split at hand."""
    text = rewards.parse_assignment(config.assign or "")
    expression = _expression(config, "--assign", text)
    known = rewards.statistics(frame, train)
    rewards.choose(frame, lambda f: rewards.by_step(f, expression, known), at_hand=config.regroup)


def _parts(
    left: np.ndarray, of_split: np.ndarray | None, shares: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Divide the steps that are left: split -> bool [N]; all of them under an empty name."""
    if of_split is None:
        return {"": left}
    return {name: left & (of_split == number) for number, name in enumerate(shares)}


# -- writing ---------------------------------------------------------------------------------------


def _write(
    frame: Frame,
    kept: np.ndarray,
    context: np.ndarray,
    directory: Path,
    info: Mapping[str, Any],
    *,
    regroup: bool,
) -> None:
    """Write kept rows and context, the signal frozen; context gets weight 0."""
    stored = frame.keys["loss_weight"]
    zero = pa.scalar(0.0, stored.type)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "loss_weight": arrow.if_else(pa.array(context), zero, stored)
    }
    if frame.rewards is not None:
        columns |= {name: frame.rewards[name] for name in query.REWARD_COLUMNS}
    rows = kept | context
    columns |= _regrouped(frame, rows) if regroup else _frozen(frame)
    write(frame, rows, columns, directory, info)


def _frozen(frame: Frame) -> dict[str, pa.Array | pa.ChunkedArray]:
    return {name: frame.signal[name] for name in schema.FROZEN_NAMES}


def _regrouped(frame: Frame, rows: np.ndarray) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Compute the signal over some rows alone."""
    base = frame.signal_inputs.filter(pa.array(rows))
    found = derived.signal(base, derived.order(base))
    places = np.full(frame.num_rows, -1, np.int64)
    places[rows] = np.arange(base.num_rows)
    at = pa.array(places, mask=~rows)
    return {name: found[name].take(at) for name in schema.FROZEN_NAMES}
