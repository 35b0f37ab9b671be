"""`claw export TREE`: a token tree to packed training rows with a plan.

Each stage draws steps of the tree; in depth-first order their rows are cut into packed rows, the
packed rows shuffled by the seed, and the shuffled order cut into updates and phases. The plan
stands in the manifest, so training needs no sampler: it reads what the plan says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clawcli import config as configs
from clawcli import cost, layout, pack
from clawcli.errors import DataError
from clawcli.export import plan as plans
from clawcli.export import select, write
from clawcli.export.config import ExportShardsConfig, ExportShardsReport
from clawcli.export.origin import Origin
from clawcli.export.plan import Plan, StageRows
from clawcli.export.select import Eligible
from clawcli.export.write import StagePacked
from clawcli.store import artefact, shards, tokenizers, trees
from clawcli.store.expressions import Expression
from clawcli.store.manifest import load_tokenizer
from clawcli.store.trees import Tree
from clawcli.store.uids import binary, codes


def export_shards(config: ExportShardsConfig) -> ExportShardsReport:
    """Write the trained steps of a tree, or a sample of them, as shards.

    Raises:
        UsageError: the output is the input, or touches an artefact; sample is no amount.
        WhereError: an expression is none over the steps that were merged.
        NotFoundError: the tree is missing.
        DataError: the input is no tree, a damaged one, no step is left, a priority is no number
            from 0 on, or there are fewer packed rows than ranks.
        OutputExistsError: the output exists and force is off.
    """
    source, output = Path(config.input), Path(config.output)
    artefact.check_output(output, kind=shards.KIND, force=config.force, inputs=[source])
    config.amount()
    place = next(place for place in output.absolute().parents if place.is_dir())
    tree = trees.read(source, spill=place)
    tokenizer = load_tokenizer(source, tree.manifest)
    origin = Origin(tree)
    if config.reward_expr is not None:
        expression = Expression(
            text=config.reward_expr, flag="--reward-expr", timeout_s=config.where_timeout_s
        )
        tree = origin.rewarded(expression)
    packed = _pack(tree, origin, config)
    report = packed.report(config)
    if not config.dry_run:
        with artefact.create(
            output,
            kind=shards.KIND,
            force=config.force,
            config=configs.to_dict(config),
            inputs=[artefact.describe_input(tree.path), *origin.inputs()],
        ) as draft:
            packed.write(draft.path)
            tokenizer.to_file(draft.path / tokenizers.FILE)
            draft.manifest.update(packed.describe(config, report))
        origin.register(output)
    return report


def _pack(tree: Tree, origin: Origin, config: ExportShardsConfig) -> _Packed:
    """Draw, pack and plan."""
    found = select.eligible(tree, config)
    drawn = select.stages(found, origin, config)
    ends = found.steps["end_node_id"].to_numpy()
    ordered = [pack.depth_first(tree.forest, ends[stage.steps]) for stage in drawn]
    lengths = np.concatenate([rows.lengths for rows in ordered])
    target = config.max_tokens_per_row or pack.target_tokens(lengths)
    groups = codes(binary(found.steps["group_uid"]))[0]
    actions = (
        found.steps["response_end"].to_numpy() - found.steps["response_start"].to_numpy()
    ).astype(np.int64)
    packed, planned = [], []
    for stage, rows in zip(drawn, ordered, strict=True):
        style = pack.Layout(config.merge)
        runs = pack.cut(rows, layout=style, max_tokens=target, groups=groups[stage.steps])
        laid = layout.lay_out(tree.forest, ends[stage.steps], rows, runs, layout=style)
        row_of_step = np.repeat(np.arange(len(runs)), np.diff(laid.step_edges))
        mine = stage.steps[rows.order]
        trained = np.bincount(row_of_step, actions[mine], minlength=len(runs)).astype(np.int64)
        work = cost.Work(tokens=laid.tokens, head_tokens=trained, pairs=laid.pairs)
        costs = cost.SIZES[cost.DEFAULT_SIZE].multiply_adds(work)
        packed.append(StagePacked(stage, laid, costs, rows.order))
        blocks = np.arange(len(runs))
        if config.whole_trajectories:
            trajectories = codes(binary(found.steps["trajectory_uid"]))[0].astype(np.int64)
            blocks = plans.blocks(row_of_step, trajectories[mine], len(runs))
        planned.append(StageRows(stage.number, stage.phases, laid.tokens, costs, blocks))
    num_rows = sum(len(stage.tokens) for stage in planned)
    if num_rows < config.ranks:
        raise DataError(
            f"{num_rows:,} packed rows are fewer than --ranks {config.ranks:,}.",
            "Lower --ranks or --max-tokens-per-row.",
        )
    return _Packed(
        tree=tree,
        found=found,
        stages=packed,
        plan=plans.make(planned, config, config.tokens_per_update or target * config.ranks),
        max_tokens_per_row=target,
        logical_tokens=int(lengths.sum()),
        unique_tokens=sum(int((rows.lengths - rows.lcps).sum()) for rows in ordered),
    )


@dataclass(frozen=True, slots=True)
class _Packed:
    """All that is to be written."""

    tree: Tree
    found: Eligible
    stages: list[StagePacked]
    plan: Plan
    max_tokens_per_row: int
    logical_tokens: int
    unique_tokens: int
    """Tokens of the trees of each stage's steps alone."""

    def _groups(self) -> list[tuple[int, int, int, int]]:
        """List the row groups: stage, first row in its order, one past the last, and tokens."""
        found = []
        for number, (stage, order) in enumerate(zip(self.stages, self.plan.order, strict=True)):
            sizes = stage.packed.tokens[order]
            for start, end in write.groups(sizes):
                found.append((number, start, end, int(sizes[start:end].sum())))
        return found

    def write(self, directory: Path) -> None:
        """Write all rows."""
        groups = self._groups()
        tables = dict(enumerate(self._tables()))
        with shards.Writer(directory) as writer:
            numbers = shards.parts([tokens for *_, tokens in groups])
            for (stage, start, end, _), part in zip(groups, numbers, strict=True):
                writer.write(tables[stage].group(start, end), part)

    def _tables(self) -> Iterator[write.Tables]:
        """Prepare the rows of each stage."""
        phases, updates = (np.zeros(sum(map(len, self.plan.order)), np.int64) for _ in range(2))
        for number, update in enumerate(self.plan.updates):
            if not update.epoch:
                phases[update.row_ids], updates[update.row_ids] = update.phase, number
        first = 0
        for stage, order in zip(self.stages, self.plan.order, strict=True):
            row_ids = first + np.arange(len(order))
            places = {"row_id": row_ids, "phase": phases[row_ids], "update": updates[row_ids]}
            yield write.Tables(stage, order, places, self.found.steps, self.tree.forest.token_ids)
            first += len(order)

    def report(self, config: ExportShardsConfig) -> ExportShardsReport:
        """Count what is done."""
        stages = [packed.stage for packed in self.stages]
        sizes = np.concatenate([packed.packed.tokens for packed in self.stages])
        computed, target = int(sizes.sum()), self.max_tokens_per_row
        taken = np.unique(np.concatenate([stage.steps for stage in stages]))
        num_possible = int(np.logical_or.reduce([stage.is_possible for stage in stages]).sum())
        left_out = {
            "too_long": len(self.found.too_long),
            "not_in_stage": len(self.found.steps) - num_possible,
            "not_drawn": num_possible - len(taken),
        }
        kinds = sum((stage.priorities_by_kind for stage in stages), Counter())
        groups = self._groups()
        return ExportShardsReport(
            steps=sum(len(stage.steps) for stage in stages),
            trajectories=len(self.found.steps["trajectory_uid"].take(taken).unique()),
            steps_left_out_by_reason={reason: n for reason, n in left_out.items() if n},
            left_out=dict.fromkeys(self.found.too_long, "too_long"),
            units_by_stage={str(stage.number): stage.num_units for stage in stages},
            priorities_by_kind=dict(sorted(kinds.items())),
            importance_weight_max=max(float(stage.importance.max()) for stage in stages),
            importance_weight_bound=max(stage.bound for stage in stages),
            rows=len(sizes),
            shards=shards.parts([tokens for *_, tokens in groups])[-1] + 1,
            tokens=computed,
            logical_tokens=self.logical_tokens,
            max_tokens_per_row=target,
            padding_frac=1 - computed / int(np.maximum(sizes, target).sum()),
            # (logical / computed) / (logical / unique), where unique is the tree of these steps
            merge_kept_frac=self.unique_tokens / computed,
            phases=self.plan.updates[-1].phase + 1,
            updates=len(self.plan.updates),
            epochs=config.epochs,
            ranks=config.ranks,
            fillers=sum(update.fillers for update in self.plan.updates),
            rank_imbalance_frac=self.plan.imbalance,
        )

    def describe(self, config: ExportShardsConfig, report: ExportShardsReport) -> dict[str, Any]:
        """Say in the manifest what was written, and when it is to be read."""
        carried = ("tokenizer", "vocab_hash", "vocab_size", "template_hash", "eos_token_id")
        return {
            **{key: getattr(self.tree.manifest, key) for key in carried},
            "tokenizer_file": tokenizers.FILE,
            "merge": config.merge,
            "num_phases": report.phases,
            "num_updates": report.updates,
            "rows": report.rows,
            "steps": report.steps,
            "tokens": report.tokens,
            "left_out": report.left_out,
            "counts": configs.to_dict(report),
            "plan": {
                "seed": config.seed,
                "unit": config.unit,
                "beta": config.sampling.beta,
                "stages": [
                    {
                        "units": stage.num_units,
                        "threshold": stage.threshold if np.isfinite(stage.threshold) else None,
                        "importance_weight_bound": stage.bound,
                    }
                    for stage in (packed.stage for packed in self.stages)
                ],
                "epochs": config.epochs,
                "ranks": config.ranks,
                "rank_imbalance_frac": self.plan.imbalance,
                "whole_trajectories": config.whole_trajectories,
                "updates": configs.to_dict(self.plan.updates),
            },
        }
