"""Rows of tokens as agents make them, generated: one root, groups of attempts, a row for each turn.

Every attempt begins with the root that all share (system prompt and tools) and with the question
of its group; each turn's row continues the row before it. The seed fixes all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_VOCAB = 32_000


def attempts(
    *,
    groups: int = 50,
    per_group: int = 4,
    turns: tuple[int, int] = (12, 12),
    root_tokens: int = 1500,
    question_tokens: int = 300,
    turn_tokens: tuple[int, int] = (250, 250),
    seed: int = 0,
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield attempts, one at a time.

    Args:
        groups: tasks.
        per_group: attempts at each task.
        turns: fewest and most turns of an attempt.
        root_tokens: tokens that all rows begin with.
        question_tokens: tokens that the rows of a task share behind them.
        turn_tokens: fewest and most tokens that a turn adds.
        seed: of the generator.

    Yields:
        The group and the attempt's rows, int32, one for each turn.
    """
    random = np.random.Generator(np.random.PCG64(seed))

    def draw(count: int) -> np.ndarray:
        return random.integers(0, _VOCAB, count, dtype=np.int32)

    root = draw(root_tokens)
    for group in range(groups):
        question = draw(question_tokens)
        for _ in range(per_group):
            row = np.concatenate([root, question])
            rows = []
            for _ in range(int(random.integers(turns[0], turns[1] + 1))):
                added = int(random.integers(turn_tokens[0], turn_tokens[1] + 1))
                row = np.concatenate([row, draw(added)])
                rows.append(row)
            yield group, rows


def shuffled(seed: int = 0, **shape: object) -> tuple[list[np.ndarray], np.ndarray]:
    """Make all rows of some attempts, in random order.

    Returns:
        The rows, and int64 [R]: the group of each.
    """
    rows, groups = [], []
    for group, made in attempts(seed=seed, **shape):  # type: ignore[arg-type]
        rows += made
        groups += [group] * len(made)
    order = np.random.Generator(np.random.PCG64(seed + 1)).permutation(len(rows))
    return [rows[place] for place in order], np.array(groups)[order]
