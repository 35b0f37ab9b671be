"""How fast a tree becomes shards and shards become arrays, and how well draws and splits do.

    python bench/export.py [--quick] [--json]

Export reads a generated tree (token_tree.py) and writes shards; its baseline reads and writes the
same ids with the same settings and hashes both files, and knows nothing of steps, packing or a
plan. The reader is measured beside mosaicml-streaming on the same rows, and the sum tree beside
TorchRL and cpprb, all three in an environment of their own (`make rivals`). CPU time; tasks run in
processes of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import token_tree
from figures import Figure
from tasks import OUT, Run, main, run, timed

ROOT = Path(__file__).parents[1]
RIVALS = ROOT / ".rivals" / "bin" / "python"
TREE, PLAIN_TREE, SHARDS = OUT / "tree", OUT / "plain-tree", OUT / "shards"
_BATCH, _ROUNDS, _WARM = 4096, 60, 5


def generate(num_tokens: str) -> None:
    """Write the trees that are exported: with log-probs of the behaviour policy, and without."""
    token_tree.write(TREE, num_tokens=int(num_tokens))
    token_tree.write(PLAIN_TREE, num_tokens=int(num_tokens), logprobs=False)


def export(argument: str) -> Run:
    """Run the verb on a tree; a second word asks for ranks."""
    from clawcli.cli import app

    tree, ranks = argument.split()
    import clawcli.export.shards  # noqa: F401 - loading libraries is start-up

    command = ["export", tree, "-o", str(SHARDS), "--force", "--quiet", "--ranks", ranks]
    command += ["--tokens-per-update", str(int(ranks) * 4 * 16_384)]

    def task() -> None:
        if code := app.run(command):
            raise SystemExit(code)

    return timed(task)


def copy(tree: str) -> Run:
    """Be the baseline of export: read the ids of a tree, write as many as the shards have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from clawcli.store import artefact, shards, trees

    tokens = json.loads((SHARDS / "manifest.json").read_text())["tokens"]

    def task() -> None:
        nodes, target = Path(tree) / trees.NODES_FILE, OUT / "copied.parquet"
        artefact.file_hash(nodes)
        missing = tokens
        kind = pa.schema([("token_ids", pa.list_(pa.int32()))])
        with pq.ParquetWriter(target, kind, **shards.TOKEN_OPTIONS) as writer:
            # packed rows hold some tokens of the tree twice
            while missing:
                with pq.ParquetFile(nodes) as file:
                    for batch in file.iter_batches(1024, columns=["token_ids"], use_threads=False):
                        piece = batch.column("token_ids").flatten()[:missing]
                        missing -= len(piece)
                        edges = np.append(np.arange(0, len(piece), 1 << 14), len(piece))
                        lists = pa.ListArray.from_arrays(pa.array(edges, pa.int32()), piece)
                        writer.write_table(pa.table([lists], schema=kind))
                        if not missing:
                            break
        artefact.file_hash(target)

    return timed(task)


def read(mode: str) -> dict:
    """Read all updates as arrays of the trainer; cold = the cache is empty before."""
    os.environ["CLAW_CACHE_DIR"] = str(OUT / "cache")
    from clawcli.gate import Objective
    from clawcli.store import shards
    from clawcli.train.rows import train_row

    if mode == "cold":
        shutil.rmtree(OUT / "cache", ignore_errors=True)
    opened = shards.open_shards(SHARDS)
    started, tokens = time.process_time(), 0
    for update in opened.updates():
        for packed in update.rows:
            tokens += len(train_row(packed, Objective.PPO).forest.token_ids)
    return {"cpu_s": time.process_time() - started, "tokens": tokens}


def dump(_: str) -> None:
    """Write the rows, as arrays of the trainer, for the rival."""
    os.environ["CLAW_CACHE_DIR"] = str(OUT / "cache")
    from clawcli.store import shards
    from clawcli.train import advantage

    names = ("weight", "temperature", "mu_valid", *advantage.COLUMNS)
    columns: dict[str, list[np.ndarray]] = {}
    for row in shards.open_shards(SHARDS).rows():
        spans = ("segment", "response_start", "response_end")
        made = {
            "token_ids": row.forest.token_ids,
            "segment_starts": row.forest.segment_starts,
            "segment_parents": row.forest.segment_parents,
            "rollout_logprobs": row.steps.rollout_logprobs()[0].astype(np.float32),
            **{name: row.steps.integers(name).astype(np.int32) for name in spans},
            **{name: row.steps.numbers(name) for name in names},
        }
        for name, values in made.items():
            columns.setdefault(name, []).append(values)
    arrays = {name: np.concatenate(values) for name, values in columns.items()}
    for name, values in columns.items():
        arrays[f"{name} edges"] = np.append(0, np.cumsum([len(each) for each in values]))
    np.savez(OUT / "rows.npz", **arrays)


def draw(entries: str) -> float:
    """Draw and write with claw's sum tree; median CPU seconds of a round."""
    from clawcli.priority import SumTree

    generator = np.random.default_rng(1)
    tree = SumTree(int(entries))
    tree.add(generator.lognormal(0, 1, int(entries)))
    taken = []
    for _ in range(_ROUNDS):
        given = generator.lognormal(0, 1, _BATCH)
        started = time.process_time()
        batch = tree.sample(_BATCH, generator, beta=0.4)
        tree.update(batch.slots, batch.generations, given)
        taken.append(time.process_time() - started)
    return statistics.median(taken[_WARM:])


def estimate(draws: str) -> dict:
    """Estimate a total from many draws of 600 among 2,000, by pi and by the naive probability."""
    from clawcli import sampling

    generator = np.random.default_rng(0)
    count, taken = 2000, 600
    weight = generator.lognormal(0, 1, count)
    value = weight**0.5 + generator.random(count)
    naive = taken * weight / weight.sum()
    by_pi, by_naive = [], []
    for _ in range(int(draws)):
        drawn = sampling.draw(weight, generator.random(count), taken)
        mine = drawn.chosen
        by_pi.append((value[mine] / sampling.inclusion(weight[mine], drawn.threshold)).sum())
        by_naive.append((value[mine] / naive[mine]).sum())
    total = value.sum()
    return {
        "pi": float(np.mean(by_pi) / total - 1),
        "naive": float(np.mean(by_naive) / total - 1),
    }


TASKS = {
    "generate": generate,
    "export": export,
    "copy": copy,
    "read": read,
    "dump": dump,
    "draw": draw,
    "estimate": estimate,
}


def _rival(task: str, argument: object) -> dict:
    if not RIVALS.is_file():
        raise SystemExit("bench/export.py needs the environment that `make rivals` makes.")
    command = [RIVALS, Path(__file__).with_name("rivals.py"), task, str(argument)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout.splitlines()[-1])


def export_figures(num_tokens: int) -> Iterator[Figure]:
    """Measure export beside plain reading and writing."""
    run("generate", num_tokens, kind=None)
    for name, tree in (("", PLAIN_TREE), ("_with_logprobs", TREE)):
        taken, plain = [], []
        for _ in range(3):
            taken.append(run("export", f"{tree} 1", kind=Run))
            plain.append(run("copy", tree, kind=Run))
        tokens = json.loads((SHARDS / "manifest.json").read_text())["tokens"]
        megabytes = 4 * tokens / 1e6
        plain_speed = megabytes / statistics.median(p.cpu_s for p in plain)
        yield Figure(
            figure=f"export{name}_mb_per_cpu_s",
            value=megabytes / statistics.median(t.cpu_s for t in taken),
            asked=None if name else 150,
            better="higher",
            baseline=f"ids alone, read, written and hashed: {plain_speed:.0f}",
            note=f"{tokens / 1e6:.0f}M ids in the shards, median of 3",
        )
        yield Figure(
            figure=f"export{name}_vs_plain_copy",
            value=statistics.median(p.cpu_s / t.cpu_s for p, t in zip(plain, taken, strict=True)),
            asked=None,
            better="higher",
            baseline="ids alone, read, written and hashed",
            note=f"CPU; {max(t.resident_mb for t in taken):,.0f} MB resident",
        )


def reader_figures() -> Iterator[Figure]:
    """Measure the reader beside mosaicml-streaming."""
    run("dump", kind=None)
    theirs = _rival("mds", OUT)
    speeds = {}
    for mode in ("cold", "warm"):
        found = [run("read", mode) for _ in range(3)]
        assert found[0]["tokens"] == theirs["tokens"]
        speeds[mode] = found[0]["tokens"] / statistics.median(f["cpu_s"] for f in found)
    base = theirs["tokens"] / theirs["cpu_s"]
    for mode, speed in speeds.items():
        yield Figure(
            figure=f"reader_{mode}_vs_mds",
            value=speed / base,
            asked=None,
            better="higher",
            baseline=f"mosaicml-streaming: {base / 1e6:.0f}M tokens a CPU second",
            note=f"{speed / 1e6:.0f}M tokens a CPU second, trainer's arrays; "
            + ("decoding included" if mode == "cold" else "decoded before"),
        )


def draw_figures() -> Iterator[Figure]:
    """Measure the sum tree."""
    for entries in (1_000_000, 10_000_000):
        ours, theirs = [], {"torchrl": [], "cpprb": []}
        for _ in range(3):
            ours.append(run("draw", entries, kind=float))
            for rival, taken in theirs.items():
                taken.append(_rival(rival, entries)["cpu_s"])
        for rival, asked in (("torchrl", 1.3), ("cpprb", 0.5)):
            yield Figure(
                figure=f"sum_tree_{entries // 10**6}m_vs_{rival}",
                value=statistics.median(o / t for o, t in zip(ours, theirs[rival], strict=True)),
                asked=asked,
                better="lower",
                baseline=f"{rival}, {statistics.median(theirs[rival]) * 1e3:.2f} ms",
                note=f"CPU of drawing and writing {_BATCH:,}: {statistics.median(ours) * 1e3:.2f} ms",
            )


def figures(quick: bool) -> Iterator[Figure]:
    """Measure all that export is asked for."""
    found = run("estimate", 4_000 if quick else 20_000)
    yield Figure(
        figure="sample_total_bias_pct",
        value=abs(found["pi"]) * 100,
        asked=0.2,
        better="lower",
        baseline=f"naive probabilities: {found['naive'] * 100:+.1f}%",
        note=f"{found['pi'] * 100:+.3f}%, mean over {4_000 if quick else 20_000:,} draws",
    )
    yield from draw_figures()
    yield from export_figures(15_000_000 if quick else 60_000_000)
    yield from reader_figures()
    run("export", f"{TREE} 8", kind=Run)
    plan = json.loads((SHARDS / "manifest.json").read_text())["plan"]
    yield Figure(
        figure="rank_imbalance_pct",
        value=100 * plan["rank_imbalance_frac"],
        asked=5,
        better="lower",
        baseline="no rank computes more than the mean",
        note=f"8 ranks, 4 rows each, mean over {len(plan['updates']):,} updates",
    )


if __name__ == "__main__":
    main(__doc__, lambda task, argument: TASKS[task](argument), figures)
