"""What a run learned of its steps, for the next export: each step's newest priority.

The priorities lie in a sum tree, a slot for each step. At the end of the run they become
priorities.parquet, which `claw attach` puts beside the step table, where `claw export --priority`
finds them. A priority is the absolute advantage before any weight: a weighted one, fed back, would
fall for whatever was drawn often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli import schema
from clawcli.priority import UNKNOWN_VERSION, SumTree
from clawcli.train.rows import TrainRow


class StepPriorities:
    """Priorities of the steps of some shards."""

    def __init__(self, num_steps: int) -> None:
        """Know nothing yet; num_steps = how many different steps there can be."""
        self.tree = SumTree(num_steps)
        self._slots: dict[str, int] = {}
        self._learned = {
            name: np.full(num_steps, np.nan) for name in ("advantage", "logprob_mean", "update")
        }

    def learn(
        self, rows: Sequence[TrainRow], logprob_means: Mapping[str, float], *, is_ppo: bool
    ) -> None:
        """Take over what an update says of its steps.

        Args:
            rows: of the update.
            logprob_means: step_uid -> mean log-prob of its action.
            is_ppo: steps have advantages; without, the priority is 1.
        """
        uids = [uid for row in rows for uid in row.step_uids]
        advantages_S = np.concatenate([row.advantages_S for row in rows])
        priorities_S = np.abs(advantages_S) if is_ppo else np.ones(len(uids))
        versions = [version for row in rows for version in row.policy_versions]
        slots_S = self._slots_of(uids, versions)
        self.tree.update(slots_S, self.tree.generations[slots_S], priorities_S)
        self._learned["advantage"][slots_S] = advantages_S if is_ppo else np.nan
        self._learned["logprob_mean"][slots_S] = [logprob_means[uid] for uid in uids]
        self._learned["update"][slots_S] = rows[0].update

    def _slots_of(self, uids: Sequence[str], versions: Sequence[int | None]) -> np.ndarray:
        new = {uid: v for uid, v in zip(uids, versions, strict=True) if uid not in self._slots}
        if new:
            known = [UNKNOWN_VERSION if version is None else version for version in new.values()]
            slots, _ = self.tree.add(np.zeros(len(new)), np.array(known))
            self._slots |= dict(zip(new, slots.tolist(), strict=True))
        return np.array([self._slots[uid] for uid in uids])

    def save(self, path: Path) -> None:
        """Write priorities.parquet: one row for each step that was trained."""
        slots = np.fromiter(self._slots.values(), np.int64, len(self._slots))
        versions = self.tree.policy_versions[slots]
        advantages = self._learned["advantage"][slots]
        columns = {
            "step_uid": list(self._slots),
            "priority": self.tree.priorities[slots],
            "advantage": pa.array(advantages, mask=np.isnan(advantages)),
            "logprob_mean": self._learned["logprob_mean"][slots],
            "policy_version": pa.array(versions, mask=versions == UNKNOWN_VERSION),
            "update": self._learned["update"][slots].astype(np.int64),
        }
        fields = schema.arrow_schema(schema.PRIORITIES)
        pq.write_table(pa.table(columns, schema=fields), path, compression="zstd")
