"""What curation costs beside a plain copy of the same rows, and how much memory it takes.

    python bench/curate.py [--quick] [--json]

The baseline is DuckDB alone: it copies the rows that curate wrote, found by a semi-join on their
uids, into Parquet files of the same partitions and compression, with no context to find, no
statistics to freeze and nothing to make durable. Both take turns in processes of their own, on one
table of generated steps. Inputs are generated into bench/out and removed.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

from figures import Figure
from tasks import OUT, Run, main, run, timed

DATA = OUT / "curate-data"
_STEPS_A_TRAJECTORY, _TRAJECTORIES_A_GROUP = 12, 4
_CHUNK = 500_000
WHERE = "output_tokens > 100 AND (reward IS NULL OR reward >= 0)"

_ROWS_SQL = """
SELECT md5('step' || i) AS step_uid,
       md5('source' || i // 100000) AS source_uid,
       'call-' || i AS native_id,
       md5('trajectory' || i // {length}) AS trajectory_uid,
       'main' AS trajectory_kind,
       i % {length} AS step_index,
       md5('group' || i // {length} // {attempts}) AS group_uid,
       CASE WHEN i % {length} > 0 THEN md5('step' || i - 1) END AS parent_step_uid,
       2 * (i % {length}) AS prefix_messages,
       CASE WHEN i % {length} = 0 THEN 'You are an agent that edits files.' END AS system,
       [{{'role': CASE WHEN i % {length} = 0 THEN 'user' ELSE 'tool' END,
          'content': repeat('line ' || hash(i) % 977 || ' of the file; ', 20)
                     || hash(i + 7) % 100003}}] AS observation,
       repeat('look at ' || hash(i + 1) % 983 || ', ', 6) || hash(i + 9) % 100003 AS response,
       'stop' AS finish_reason,
       0 AS choice_index,
       CASE WHEN i % {length} = {length} - 1
            THEN (hash(i // {length}) % 3 = 0)::INT::DOUBLE END AS reward,
       'agent-8b' AS model, 'agent-8b' AS policy, 1 + hash(i // 5000) % 9 AS policy_version,
       100 + hash(i + 3) % 4000 AS input_tokens, hash(i + 2) % 200 AS output_tokens,
       make_timestamptz(1760000000000000 + i * 1000000) AS started_at,
       'policy' AS step_kind, 'full' AS state_kind, 1.0 AS loss_weight,
       md5('state' || i) AS state_hash, md5('next' || i) AS next_hash,
       'openai_chat' AS log_format, '2026-01-' || lpad((1 + i // 500000)::VARCHAR, 2, '0') AS log_date,
       'requests.jsonl' AS source_path, i * 900 AS source_offset
FROM range({start}, {end}) AS numbers(i)
"""


def generate(directory: Path, num_steps: int) -> None:
    """Write a step table of generated steps."""
    import duckdb
    import pyarrow as pa

    from clawcli import schema
    from clawcli.store import table

    wanted = schema.steps_schema()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for start in range(0, num_steps, _CHUNK):
            sql = _ROWS_SQL.format(
                length=_STEPS_A_TRAJECTORY,
                attempts=_TRAJECTORIES_A_GROUP,
                start=start,
                end=min(start + _CHUNK, num_steps),
            )
            rows = connection.sql(sql).to_arrow_table()
            columns = [_fitting(rows, field) for field in wanted]
            table.append(
                directory / "steps",
                pa.table(columns, schema=wanted),
                info={"command": "ingest"},
                partition_by=schema.PARTITION_COLUMNS,
            )


def _fitting(rows, field):
    """Give a generated column its declared type; what was not generated is null."""
    import pyarrow as pa

    if field.name not in rows.column_names:
        return pa.nulls(rows.num_rows, field.type)
    if field.name != "observation":
        return rows[field.name].cast(field.type)
    lists = rows[field.name].combine_chunks()
    inner = lists.values
    kinds = list(field.type.value_type)
    fields = [
        inner.field(kind.name)
        if kind.name in ("role", "content")
        else pa.nulls(len(inner), kind.type)
        for kind in kinds
    ]
    return pa.ListArray.from_arrays(lists.offsets, pa.StructArray.from_arrays(fields, fields=kinds))


def curate(where: str) -> None:
    """Run the verb."""
    from clawcli.cli import app

    code = app.run(
        ["curate", str(DATA), "--where", where, "-o", str(OUT / "kept"), "--quiet", "--force"]
    )
    if code:
        raise SystemExit(code)


def copy(_: str) -> None:
    """Be the baseline: copy the rows that curate wrote."""
    import duckdb
    from deltalake import DeltaTable

    target = OUT / "copied"
    shutil.rmtree(target, ignore_errors=True)
    files = DeltaTable(DATA / "steps").file_uris()
    kept = DeltaTable(OUT / "kept" / "steps").file_uris()
    with duckdb.connect() as connection:
        connection.execute("SET memory_limit = '2GB'")
        connection.execute(
            f"COPY (SELECT * FROM read_parquet({files}, hive_partitioning = true) "
            f"WHERE step_uid IN (SELECT step_uid FROM read_parquet({kept}))) "
            f"TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3, "
            "PARTITION_BY (log_format, log_date))"
        )


TASKS: dict[str, Callable[[str], None]] = {
    "curate": curate,
    "copy": copy,
    # a process inherits the highest memory of the one that starts it, so that one stays small
    "generate": lambda num_steps: generate(DATA, int(num_steps)),
}


def serve(task: str, argument: str) -> Run:
    """Be the process of one task; start-up does not count."""
    import duckdb  # noqa: F401 - loading libraries is start-up

    import clawcli.cli.app
    import clawcli.curate.run  # noqa: F401

    return timed(lambda: TASKS[task](argument))


def figures(quick: bool) -> list[Figure]:
    """Measure curation beside the copy."""
    num_steps = 500_000 if quick else 5_000_000
    run("generate", num_steps)
    taken, plain = [], []
    for _ in range(3):
        taken.append(run("curate", WHERE, kind=Run))
        plain.append(run("copy", kind=Run))
    base = f"DuckDB copies the same rows, {num_steps:,} steps"
    ratio = statistics.median(t.cpu_s / p.cpu_s for t, p in zip(taken, plain, strict=True))
    return [
        Figure(
            figure="curate_where_cost",
            value=ratio,
            asked=1.5,
            better="lower",
            baseline=base,
            note=f"CPU, median of 3; {WHERE}",
        ),
        Figure(
            figure="curate_resident_mb",
            value=max(t.resident_mb for t in taken),
            asked=2000,
            better="lower",
            baseline=base,
            note=f"highest; the copy takes {max(p.resident_mb for p in plain):,.0f}",
        ),
    ]


if __name__ == "__main__":
    main(__doc__, serve, figures)
