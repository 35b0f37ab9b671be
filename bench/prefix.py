"""How fast rows of tokens become a tree, in how much memory, and what packing leaves of it.

    python bench/prefix.py [--quick] [--json]

The baseline of the builder is the trie that one writes first: a dict for each token. Inputs are
generated (token_rows.py); CPU time, each task in a process of its own.
"""

from __future__ import annotations

import resource
import statistics
import time

import numpy as np
import token_rows
from figures import Figure
from tasks import OUT, main, run

STEP_ROWS = {"groups": 40, "per_group": 40, "turns": (8, 8)}
"""12,800 rows of 2,925 tokens on average."""
PACKED_ROWS = {"groups": 8, "per_group": 16, "turns": (3, 8), "turn_tokens": (60, 499), "seed": 1}
"""About 700 rows of 2,770 tokens, most of them shared."""
ROUNDS = 3


def dict_trie(rows: list[np.ndarray]) -> int:
    """Be the baseline: count the tokens of the tree."""
    root: dict = {}
    count = 0
    for row in rows:
        place = root
        for token in row.tolist():
            below = place.get(token)
            if below is None:
                below = place[token] = {}
                count += 1
            place = below
    return count


def build_in_memory(groups: str) -> dict:
    """Build beside the baseline, on one part of the rows, and alone on all of them."""
    from clawcli.prefix import build

    rows, _ = token_rows.shuffled(**STEP_ROWS)
    part, _ = token_rows.shuffled(**{**STEP_ROWS, "groups": int(groups)})
    started = time.process_time()
    count = dict_trie(part)
    base_s = time.process_time() - started
    taken, on_part = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        build.merge(rows)
        taken.append(time.process_time() - started)
        started = time.process_time()
        forest, _ = build.merge(part)
        on_part.append(time.process_time() - started)
        assert len(forest.token_ids) == count
    return {
        "tokens": sum(map(len, rows)),
        "cpu_s": statistics.median(taken),
        "base_cpu_s": base_s,
        "part_cpu_s": statistics.median(on_part),
    }


def memory_of_build(_: str) -> dict:
    """Measure the most memory that building takes beside its rows."""
    import tracemalloc

    from clawcli.prefix import build

    rows, _ = token_rows.shuffled(**STEP_ROWS)
    tracemalloc.start()
    build.merge(rows)
    _, peak = tracemalloc.get_traced_memory()
    return {"bytes_per_token": peak / sum(map(len, rows))}


def build_from_disk(tokens: str) -> dict:
    """Stream rows to disk and build the tree from there."""
    from clawcli.prefix import build
    from clawcli.prefix.spool import Writer

    wanted, total = int(tokens), 0
    shape = {"groups": 10**6, "per_group": 40, "turns": (8, 8), "seed": 2}
    with Writer(OUT / "rows") as writer:
        for _, rows in token_rows.attempts(**shape):
            for row in rows:
                writer.append(row)
                total += len(row)
            if total >= wanted:
                break
        spool = writer.rows()
    started = time.process_time()
    with spool:
        ordered = build.sort_rows(spool)
        forest, _ = build.assemble(spool, ordered, file=OUT / "tokens")
    return {
        "tokens": total,
        "unique": len(forest.token_ids),
        "cpu_s": time.process_time() - started,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def pack_rows(_: str) -> dict:
    """Pack rows as the command does, and in three other ways."""
    from clawcli import pack
    from clawcli.prefix import build

    rows, _ = token_rows.shuffled(**PACKED_ROWS)
    ordered = build.sort_rows(rows)
    found = {"rows": len(rows), "bound": float(sum(map(len, rows)) / ordered.computed_tokens([0]))}
    for target in (8_192, 16_384, 65_536):
        runs = pack.cut(ordered, layout=pack.Layout.TREE, max_tokens=target)
        left = ordered.computed_tokens([start for start, _ in runs])
        found[str(target)] = {
            "command": left,
            "greedy cut of the order": ordered.computed_tokens(_greedy(ordered, target)),
            "first fit decreasing": _first_fit(sorted(rows, key=len, reverse=True), target),
            "first fit in order of arrival": _first_fit(rows, target),
        }
    found["tokens"] = sum(map(len, rows))
    return found


def _greedy(rows, target: int) -> list[int]:
    starts, used = [], 0
    for place, (length, lcp) in enumerate(
        zip(rows.lengths.tolist(), rows.lcps.tolist(), strict=True)
    ):
        if not starts or used + length - lcp > target:
            starts.append(place)
            used = length
        else:
            used += length - lcp
    return starts


def _first_fit(rows: list[np.ndarray], target: int) -> int:
    """Put each row into the first tree in which what it adds still fits."""
    from clawcli.prefix.build import shared_prefix

    trees: list[list] = []
    for row in rows:
        for tree in trees:
            added = len(row) - max(shared_prefix(row, other) for other in tree[1])
            if tree[0] + added <= target:
                tree[0] += added
                tree[1].append(row)
                break
        else:
            trees.append([len(row), [row]])
    return sum(tree[0] for tree in trees)


TASKS = {
    "build_in_memory": build_in_memory,
    "memory_of_build": memory_of_build,
    "build_from_disk": build_from_disk,
    "pack_rows": pack_rows,
}


def builder_figures(*, quick: bool) -> list[Figure]:
    """Measure the builder."""
    built = run("build_in_memory", "2" if quick else "8")
    memory = run("memory_of_build")
    streamed = run("build_from_disk", str(50_000_000 if quick else 200_000_000))
    size = f"{built['tokens'] / 1e6:.1f}M tokens in 12,800 rows"
    base = "a dict for each token"
    return [
        Figure(
            figure="prefix_build_mtokens_per_cpu_s",
            value=built["tokens"] / built["cpu_s"] / 1e6,
            asked=60,
            better="higher",
            baseline=base,
            note=f"{size}, median of {ROUNDS}",
        ),
        Figure(
            figure="prefix_build_vs_dict_trie",
            value=built["base_cpu_s"] / built["part_cpu_s"],
            asked=10,
            better="higher",
            baseline=base,
            note="CPU, on a part of the rows",
        ),
        Figure(
            figure="prefix_build_bytes_per_token",
            value=memory["bytes_per_token"],
            asked=12,
            better="lower",
            baseline="4 bytes that a token of the input has",
            note=f"beside the input, {size}",
        ),
        Figure(
            figure="prefix_build_from_disk_resident_mb",
            value=streamed["resident_mb"],
            asked=2000,
            better="lower",
            baseline=f"{4 * streamed['tokens'] / 1e6:,.0f} MB of rows",
            note=f"{streamed['tokens'] / 1e6:.0f}M tokens, {streamed['unique'] / 1e6:.1f}M in the tree",
        ),
        Figure(
            figure="prefix_build_from_disk_mtokens_per_cpu_s",
            value=streamed["tokens"] / streamed["cpu_s"] / 1e6,
            asked=None,
            better="higher",
            baseline="rows in memory, above",
            note="sorted in buckets",
        ),
    ]


def packing_figures() -> list[Figure]:
    """Measure what packing leaves of the saving."""
    found = run("pack_rows")
    figures = []
    for target, asked in ((8_192, None), (16_384, 8.62), (65_536, 9.45)):
        left = found[str(target)]
        others = ", ".join(
            f"{name} {found['tokens'] / tokens:.2f}"
            for name, tokens in left.items()
            if name != "command"
        )
        figures.append(
            Figure(
                figure=f"prefix_packing_left_at_{target}",
                value=found["tokens"] / left["command"],
                asked=asked,
                better="higher",
                baseline=f"one tree: {found['bound']:.2f}",
                note=others,
            )
        )
    return figures


if __name__ == "__main__":
    main(
        __doc__,
        lambda task, argument: TASKS[task](argument),
        lambda quick: [*builder_figures(quick=quick), *packing_figures()],
    )
