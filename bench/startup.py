"""How long `claw --help` and a usage error take, beside a Python that does nothing.

    python bench/startup.py [--quick] [--json]

Command and baseline take turns, so that a busy machine slows down both. Asked is wall time (what
a person waits for), and the ratios are of CPU time, which other processes disturb least.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from figures import Figure, show

ASKED_S = 0.5
CLAW = str(Path(sys.executable).with_name("claw"))
# what is run, and the exit code that shows that it did what it should
COMMANDS = {
    "python": ([sys.executable, "-c", "pass"], 0),
    "help": ([CLAW, "--help"], 0),
    "usage_error": ([CLAW, "ingest", "--no-such-flag"], 2),
}


def measure(command: list[str], exit_code: int) -> tuple[float, float]:
    """Run a command once; return its wall and CPU time in seconds."""
    cpu_before_s, start_s = _children_cpu_s(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s, cpu_s = time.perf_counter() - start_s, _children_cpu_s() - cpu_before_s
    # a command that fails early would look fast
    if done.returncode != exit_code:
        sys.exit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return wall_s, cpu_s


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def figures(num_runs: int) -> list[Figure]:
    """Measure every command num_runs times, in turns, after one run that fills the caches."""
    for command in COMMANDS.values():
        measure(*command)
    runs = {name: [] for name in COMMANDS}
    for _ in range(num_runs):
        for name, command in COMMANDS.items():
            runs[name].append(measure(*command))
    wall_s = {name: statistics.median(run[0] for run in runs[name]) for name in COMMANDS}
    cpu_s = {name: statistics.median(run[1] for run in runs[name]) for name in COMMANDS}
    note = f"median of {num_runs}"
    found = []
    for name in ("help", "usage_error"):
        found.append(
            Figure(
                figure=f"{name}_s",
                value=wall_s[name],
                asked=ASKED_S,
                better="lower",
                baseline=f"python -c pass: {wall_s['python']:.3f} s",
                note=f"wall, {note}",
            )
        )
        found.append(
            Figure(
                figure=f"{name}_over_python",
                value=cpu_s[name] / cpu_s["python"],
                asked=None,
                better="lower",
                baseline=f"python -c pass: {cpu_s['python']:.3f} s",
                note=f"CPU, {note}",
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 runs in place of 11")
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    arguments = parser.parse_args()
    if not Path(CLAW).exists():
        sys.exit(f"{CLAW} does not exist; run `make venv` and use its Python.")
    show(figures(3 if arguments.quick else 11), as_json=arguments.json)


if __name__ == "__main__":
    main()
