"""How fast steps become rows of tokens beside the loop that one would write first.

    python bench/render.py [--quick] [--json]

The baseline renders and tokenises each step twice with apply_chat_template, as prompt and with the
action, and takes for the response what the second has more: no proof, no cache, no check that a
text was printed. The command's side starts from the same loaded table and ends with rows of ids,
proved by its default. Both take turns in processes of their own; loading and rebuilding the
messages of the states do not count for the baseline. The log is tau-bench airline where it is
there, else sample_data; the tokenizer is that of Qwen3 (`make tokenizers`), else `tiny`.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from figures import Figure
from tasks import OUT, main, run

ROOT = Path(__file__).parents[1]
DATA = OUT / "render-data"
AIRLINE = ROOT.parent / "shared" / "corpus" / "tau-bench" / "gpt-4o-airline.json"
QWEN3 = ROOT / ".tokenizers" / "qwen3"
SAMPLE = ROOT / "sample_data" / "agent-logs"
_EVERY = 8
"""With --quick one trajectory of so many is rendered."""

Task = Callable[[], dict]
"""What is measured; it returns step_uid -> ids of the prompt, to be compared afterwards."""


def ingest(source: Path) -> None:
    """Make the table that both sides read."""
    from clawcli.cli import app

    code = app.run(["ingest", str(source), "-o", str(DATA), "--quiet"])
    if code:
        raise SystemExit(code)


def load(every: int):
    """Load the table and the tokenizer with its template."""
    from clawcli.prefix import template
    from clawcli.store import location, query, tokenizers

    table = query.load_steps(location.existing(str(DATA)))
    names = table["trajectory_uid"].to_pylist()
    taken = set(sorted(set(names))[::every])
    table = table.take([row for row, name in enumerate(names) if name in taken])
    tokenizer = tokenizers.load(str(QWEN3) if QWEN3.is_dir() else "tiny")
    return table, tokenizer, template.load(tokenizer)


def naive(every: int) -> Task:
    """Be the baseline."""
    from clawcli.prefix.render import Renderer
    from clawcli.store.state import States

    table, tokenizer, chat = load(every)
    renderer, states = Renderer(chat, tokenizer), States(table)
    steps = []
    for row, uid in enumerate(table["step_uid"].to_pylist()):
        prompt = states.prompt(row)
        state = renderer.state(prompt.system, prompt.tools, prompt.messages)
        action = renderer.state("", None, [states.action(row)]).messages[0]
        steps.append((uid, state.messages, state.tools, action))

    # once they are freed, the tokenizer that is left takes half as long again for each text
    kept = table, tokenizer

    def task() -> dict:
        assert kept
        apply = chat.engine.apply_chat_template
        rows = {}
        for uid, messages, tools, action in steps:
            prompt_ids = apply(messages, tools=tools, add_generation_prompt=True, return_dict=False)
            full_ids = apply([*messages, action], tools=tools, return_dict=False)
            starts = full_ids[: len(prompt_ids)] == prompt_ids
            rows[uid] = prompt_ids, full_ids[len(prompt_ids) :] if starts else None
        return {uid: prompt_ids for uid, (prompt_ids, _) in rows.items()}

    return task


def rows(every: int, *, linear: bool) -> Task:
    """Make rows as the command does, proved by its default."""
    from clawcli.prefix.make import Made, Settings, make_rows
    from clawcli.prefix.render import Renderer

    table, tokenizer, chat = load(every)
    uids = table["step_uid"].to_pylist()

    def task() -> dict:
        prompts = {}
        renderer = Renderer(chat, tokenizer)
        for made in make_rows(table, tokenizer, renderer, Settings(linear=linear)):
            if isinstance(made, Made):
                for place, row in made.rows.items():
                    if row is not None:
                        prompts[uids[place]] = row.tokens[: row.response_start]
        return prompts

    return task


TASKS: dict[str, Callable[[int], Task]] = {
    "naive": naive,
    "linear": lambda every: rows(every, linear=True),
    # as for templates that take back what they printed
    "fallback": lambda every: rows(every, linear=False),
}
ASKED = {"linear": 8.0, "fallback": 4.0}


class Rendered(msgspec.Struct):
    """What a task took, and the hash of each prompt."""

    cpu_s: float
    prompts: dict[str, bytes]


def serve(name: str, every: str) -> Rendered:
    """Be the process of one task; start-up does not count."""
    import numpy as np

    task = TASKS[name](int(every))
    started = time.process_time()
    prompts = task()
    cpu_s = time.process_time() - started
    hashes = {
        uid: hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=16).digest()
        for uid, ids in prompts.items()
    }
    return Rendered(cpu_s, hashes)


def compare(task: str, every: int, log: str) -> list[Figure]:
    """Measure a task beside the baseline, by turns."""
    runs = [[run(name, every, kind=Rendered) for name in ("naive", task)] for _ in range(3)]
    base, ours = runs[0]
    differing = sum(base.prompts[uid] != prompt for uid, prompt in ours.prompts.items())
    taken = statistics.median(o.cpu_s for _, o in runs)
    baseline = f"two apply_chat_template a step, {log}"
    return [
        Figure(
            figure=f"render_{task}_vs_naive",
            value=statistics.median(b.cpu_s / o.cpu_s for b, o in runs),
            asked=ASKED[task],
            better="higher",
            baseline=baseline,
            note=f"CPU, median of 3; {taken:.1f} s for {len(base.prompts):,} steps",
        ),
        Figure(
            figure=f"render_{task}_prompts_differing",
            value=differing + len(base.prompts) - len(ours.prompts),
            asked=0,
            better="lower",
            baseline=baseline,
            note="steps left out count as differing",
        ),
    ]


def figures(quick: bool) -> Iterator[Figure]:
    """Measure both ways of making rows."""
    source = AIRLINE if AIRLINE.is_file() else SAMPLE
    log = f"{source.stem}, {QWEN3.name if QWEN3.is_dir() else 'tiny'}"
    ingest(source)
    for task in ASKED:
        yield from compare(task, _EVERY if quick else 1, log)


if __name__ == "__main__":
    main(__doc__, serve, figures, quick="one trajectory of eight")
