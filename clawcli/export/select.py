"""Which steps go into the shards: what is long enough to be left out, and what each stage draws.

A unit, a trajectory or a step, is drawn with a chance that rises with its priority. All steps of a
drawn trajectory go along. Statistics of groups are frozen in the tree, so a group of which a part
is drawn keeps the mean and the spread that it had.

Shapes: S steps that could be taken, U units of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from clawcli import sampling
from clawcli.errors import DataError
from clawcli.export.config import ExportShardsConfig, StageConfig
from clawcli.export.origin import Origin
from clawcli.store import expressions, uids, units
from clawcli.store.expressions import Expression
from clawcli.store.trees import Tree

MISSING, ZERO = "missing", "zero"


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage of the curriculum takes."""

    number: int
    phases: int | None
    """Phases that the updates of one order are divided into; None = by updates_per_phase."""
    steps: np.ndarray
    """int64: places of its steps among those that could be taken, ascending."""
    sampling_weights: np.ndarray
    """float64, of each of its steps: what its unit was drawn by."""
    pi: np.ndarray
    """float64, probability that its unit was drawn."""
    importance: np.ndarray
    """float64, factor on its loss; the mean over all steps of the stage is 1."""
    bound: float
    """Largest factor that any unit could have got."""
    threshold: float
    """Of the draw; infinity = all units that could be drawn were."""
    num_units: int
    is_possible: np.ndarray
    """bool [S]: the stage is about the unit of the step."""
    priorities_by_kind: Counter[str]


@dataclass(frozen=True, slots=True)
class Eligible:
    """The steps that could be taken: those with a weight that are not too long."""

    paths: np.ndarray
    """int64 [S]: places among the paths of the tree."""
    steps: pa.Table
    """schema.PATHS [S]."""
    too_long: list[str]
    """step_uids."""
    units: units.Members

    def first(self, values: np.ndarray) -> np.ndarray:
        """Take a value of each unit from its first step."""
        _, places = np.unique(self.units.of_step, return_index=True)
        return values[places]


def eligible(tree: Tree, config: ExportShardsConfig) -> Eligible:
    """Take the steps that are trained and not too long; name those that are.

    Raises:
        DataError: there is none.
    """
    trained = np.nan_to_num(tree.paths["loss_weight"].to_numpy()) > 0
    fits = tree.paths["row_tokens"].to_numpy() <= config.max_step_tokens
    too_long = tree.paths["step_uid"].filter(pa.array(trained & ~fits)).to_pylist()
    paths = np.flatnonzero(trained & fits)
    steps = tree.paths if len(paths) == len(tree.paths) else tree.paths.take(paths)
    if not len(steps):
        long = f" and {len(too_long)} are longer than --max-step-tokens" if too_long else ""
        raise DataError(
            f"{tree.path} has no step to export: none has a weight above 0{long}.",
            "Raise --max-step-tokens." if too_long else "Merge data with steps to train.",
        )
    name = "trajectory_uid" if config.unit == "trajectory" else "step_uid"
    of_step, keys = uids.codes(uids.binary(steps[name]))
    members = units.Members(of_step.astype(np.int64), uids.halves(keys))
    return Eligible(paths, steps, too_long, members)


def stages(found: Eligible, origin: Origin, config: ExportShardsConfig) -> list[Stage]:
    """Draw the units of each stage.

    Args:
        found: what is drawn from.
        origin: the data behind it.
        config: what is asked for.

    Raises:
        UsageError: sample is no amount.
        WhereError: an expression is none over the steps of a unit.
        DataError: a priority is negative or not finite, or a stage has no unit.
    """
    amount, is_share = config.amount()
    asked = config.stages or (StageConfig(),)
    return [
        _Drawing(found, origin, config, stage, number).draw(amount, is_share=is_share)
        for number, stage in enumerate(asked)
    ]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One stage on its way."""

    found: Eligible
    origin: Origin
    config: ExportShardsConfig
    stage: StageConfig
    number: int

    def draw(self, amount: float, *, is_share: bool) -> Stage:
        keys = self.found.units.keys
        possible = self._matching()
        num_possible = int(possible.sum())
        if not num_possible:
            raise DataError(
                f"{self._name()} takes no unit: its where {self.stage.where!r} is true of none.",
                "Correct it.",
            )
        wanted = amount * self.stage.share
        num = max(1, round(wanted * num_possible if is_share else wanted))
        counts: Counter[str] = Counter()
        weights = np.zeros(len(keys))
        weights[possible] = self._weights(possible, counts)
        uniform = sampling.uniform_keys(keys, self.config.seed, sampling.stage_name(self.number))
        drawn = sampling.draw(weights, uniform, num)
        probabilities = sampling.inclusion(weights, drawn.threshold)
        of_step = self.found.units.of_step
        steps = np.flatnonzero(drawn.chosen[of_step])
        mine = of_step[steps]
        importance = sampling.importance(probabilities[mine], self.config.sampling.beta)
        least = probabilities[weights > 0].min()
        return Stage(
            number=self.number,
            phases=self.stage.phases,
            steps=steps,
            sampling_weights=weights[mine],
            pi=probabilities[mine],
            importance=importance,
            bound=float(
                importance[0] * (probabilities[mine[0]] / least) ** self.config.sampling.beta
            ),
            threshold=drawn.threshold,
            num_units=int(drawn.chosen.sum()),
            is_possible=possible[of_step],
            priorities_by_kind=counts,
        )

    def _name(self) -> str:
        return f"Stage {self.number}" if self.config.stages else "The export"

    def _matching(self) -> np.ndarray:
        """Tell which units the stage is about: bool [U]."""
        if self.stage.where is None:
            return np.ones(len(self.found.units.keys), bool)
        expression = self._expression("where", self.stage.where)
        frame = self.origin.frame
        if self.config.unit == "trajectory":
            values = units.of_trajectories(frame, expression)
        else:
            values = expressions.each(frame, expression)
        return self._of_units(np.asarray(values.fill_null(False)))

    def _weights(self, possible: np.ndarray, counts: Counter[str]) -> np.ndarray:
        """Weigh the units that a stage is about, by their priorities."""
        text, settings = self.stage.priority or self.config.priority, self.config.sampling
        if text is None:
            priorities = np.ones(int(possible.sum()))
        else:
            priorities = self._priorities(text, possible)
        return sampling.weights(
            _known(priorities, counts),
            alpha=settings.alpha,
            epsilon=settings.epsilon,
            uniform_share=settings.uniform_share,
            factors=self._freshness()[possible],
        )

    def _priorities(self, text: str, possible: np.ndarray) -> np.ndarray:
        """Evaluate the priorities of the units that a stage is about: NaN where it is NULL."""
        expression = self._expression("priority", text)
        frame = self.origin.frame
        scores = units.scores(frame, expression, self.config.unit)
        values = self._of_units(scores[units.members(frame, self.config.unit).of_step])
        bad = possible & ((values < 0) | np.isinf(values))
        if bad.any():
            first = int(np.flatnonzero(bad[self.found.units.of_step])[0])
            example = self.found.steps["step_uid"][first]
            what = "negative" if (values[bad] < 0).any() else "infinite"
            raise DataError(
                f"{expression.shown} is {what} for {int(bad.sum()):,} of {int(possible.sum()):,} "
                f"units, among them that of step {example}.",
                "A priority is 0 or more; abs() or greatest(..., 0) makes it so.",
            )
        return values[possible]

    def _freshness(self) -> np.ndarray:
        """Compute the factor of staleness: float64 [U], 1 for a policy_version that is not known."""
        decay = self.config.sampling.staleness_decay
        if decay == 1:
            return np.ones(len(self.found.units.keys))
        versions = self.origin.frame.column("staleness_versions").cast(pa.float64())
        return self._of_units(np.power(decay, versions.fill_null(0.0).to_numpy()))

    def _of_units(self, by_place: np.ndarray) -> np.ndarray:
        """Take each unit's value from those of the data's steps."""
        return self.found.first(by_place[self.origin.places[self.found.paths]])

    def _expression(self, what: str, text: str) -> Expression:
        flag = f"--{what}"
        if self.config.stages and getattr(self.stage, what) is not None:
            flag = f"stages[{self.number}].{what}"
        return Expression(text=text, flag=flag, timeout_s=self.config.where_timeout_s)


def _known(priorities: np.ndarray, counts: Counter[str]) -> np.ndarray:
    """Put the highest known priority where none is known, so that what is new is drawn soon."""
    missing = np.isnan(priorities)
    counts[MISSING] += int(missing.sum())
    counts[ZERO] += int((priorities == 0).sum())
    if missing.any():
        known = priorities[~missing]
        priorities = np.where(missing, known.max() if len(known) else 1.0, priorities)
    return priorities
