import logging
import threading

import pyarrow.compute as pc
import pytest
from conftest import assistant, pair, user, write_lines
from table_data import PARTITIONS, steps_like

from clawcli import schema
from clawcli.errors import ConflictError, MissingExtraError, NotFoundError, StoreError, UsageError
from clawcli.ingest.attach.run import AttachConfig, attach
from clawcli.manage.diff import DiffConfig, diff
from clawcli.manage.log import LogConfig, log_of
from clawcli.manage.optimize import OptimizeConfig, optimize
from clawcli.manage.restore import RestoreConfig, restore
from clawcli.manage.tag import TagConfig, tag
from clawcli.store import artefact, location, query, remote, sidecars, table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a server in this process; its address is in the environment, as users put it."""
    server = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket"
    running.stop()


@pytest.fixture
def data(bucket, request):
    """A place in the bucket that no other test uses."""
    return location.parse(f"{bucket}/{request.node.name}")


def write(place, rows, **more):
    added = table.write_files(place.steps, rows, PARTITIONS)
    return table.commit(
        place.steps, added, rows.schema, info={"command": "ingest"}, partition_by=PARTITIONS, **more
    )


def test_remote_commits_are_read_back_with_versions_history_and_filters(data):
    assert not table.exists(data.steps)
    assert write(data, steps_like(0, 30), txn=("run", 0)) == 0
    assert write(data, steps_like(30, 40), txn=("run", 1)) == 1
    assert table.read(data)["step_uid"].to_pylist() == steps_like(0, 40)["step_uid"].to_pylist()
    assert table.read(location.parse(f"{data.path}@0")).num_rows == 30
    assert [info["command"] for info in table.history(data.steps)] == ["ingest", "ingest"]
    assert table.last_transaction(data.steps, "run") == 1
    uid = steps_like(35, 36)["step_uid"][0].as_py()
    found = table.read(data, columns=["response"], where=pc.field("step_uid") == uid)
    assert found.to_pylist() == [{"response": "said 35"}]
    with pytest.raises(NotFoundError, match="has no version 7"):
        table.read(location.parse(f"{data.path}@7"))


def test_remote_table_equals_the_local_one(data, tmp_path):
    here = location.parse(str(tmp_path / "d"))
    for place in (data, here):
        write(place, steps_like(0, 20))
        changed = steps_like(5, 8, response="new", log_date="2026-02-02")
        table.replace(place.steps, changed, info={})
        table.append(place.steps, steps_like(20, 25), info={}, partition_by=PARTITIONS)
        table.compact(place.steps, info={})
    there, local = (table.read(place).sort_by("step_uid") for place in (data, here))
    assert there.equals(local)
    assert query.load_steps(location.existing(str(data.path))).num_rows == 25


def test_remote_second_writer_of_a_place_in_a_sequence_is_told(data):
    write(data, steps_like(0, 1), txn=("run", 0))
    write(data, steps_like(1, 2), txn=("run", 1))
    with pytest.raises(ConflictError, match="Another run wrote"):
        write(data, steps_like(2, 3), txn=("run", 1))
    assert table.read(data).num_rows == 2


def test_remote_writers_at_once_lose_nothing_and_detect_each_other(data):
    conflicts, meeting = [], threading.Barrier(2)

    def work(who):
        for turn in range(4):
            rows = steps_like(100 * who + turn, 100 * who + turn + 1)
            while True:
                last = table.last_transaction(data.steps, "run")
                if turn == 0 and not conflicts:
                    meeting.wait()
                try:
                    write(data, rows, txn=("run", 0 if last is None else last + 1))
                    break
                except ConflictError:
                    conflicts.append(who)

    workers = [threading.Thread(target=work, args=(who,)) for who in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert conflicts
    assert table.last_transaction(data.steps, "run") == 7
    uids = table.read(data)["step_uid"].to_pylist()
    assert sorted(uids) == sorted(
        uid
        for who in range(2)
        for uid in steps_like(100 * who, 100 * who + 4)["step_uid"].to_pylist()
    )


def test_remote_refused_commit_leaves_no_files_behind(data):
    write(data, steps_like(0, 1), txn=("run", 0))
    added = table.write_files(data.steps, steps_like(1, 2), PARTITIONS)
    kept = table.write_files(data.steps, steps_like(2, 3), PARTITIONS)
    table.commit(data.steps, kept, schema.steps_schema(), info={}, partition_by=PARTITIONS)
    table.discard(data.steps, [*added, *kept])
    assert not (data.steps / added[0].path).exists()
    assert table.read(data).num_rows == 2


def test_remote_places_are_asked_as_paths_are(data):
    assert not data.path.exists()
    assert location.may_hold_data(data.path)
    with pytest.raises(NotFoundError, match="does not exist"):
        location.existing(str(data.path))
    write(data, steps_like(0, 1))
    assert location.is_data(data.path)
    assert [place.name for place in data.path.iterdir()] == ["steps"]
    other = data.path.parent / "other"
    (other / "file").file_system().pipe_file(f"{other}/file", b"x")
    assert not location.may_hold_data(other)
    assert (other / "file").read_bytes() == b"x"
    (other / "file").unlink()
    assert not other.exists()


def test_remote_store_that_does_not_answer_is_one_sentence(bucket, monkeypatch):
    with pytest.raises((StoreError, NotFoundError)):
        location.existing("s3://no-such-bucket/data")
    with pytest.raises(StoreError):
        table.append(remote.parse("s3://no-such-bucket/data/steps"), steps_like(0, 1), info={})


def test_remote_output_of_an_artefact_is_refused(tmp_path):
    for output in ("s3://bucket/tree", "s3a://bucket/tree"):
        with pytest.raises(UsageError, match=r"--output s3a?://bucket/tree is in an object store"):
            artefact.check_output(location.Path(output), kind="tree", force=True, inputs=[tmp_path])
    with pytest.raises(UsageError, match="--output s3://bucket/out is in an object store"):
        location.local(location.parse("s3://bucket/out").path)


@pytest.mark.parametrize(
    "text",
    [
        "http://host/data",
        "s3a://bucket/data",
        "s3://",
        "s3://bucket/a b",
        "s3://bucket/50%25",
        "s3://bucket/../data",
        "gs://bucket/ä",
        "s3://bucket/x?versionId=1",
    ],
)
def test_remote_place_that_tables_cannot_have_is_refused(text):
    with pytest.raises(UsageError):
        location.parse(text)


def test_remote_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"needs the package gcsfs.*clawcli\[gs\]"):
        location.existing("gs://bucket/data")


def test_remote_log_is_ingested_into_a_remote_table_and_curated_here(bucket, claw, tmp_path):
    import boto3
    import s3fs

    records = [pair([user(f"hi {i}")], assistant(f"yo {i}"), uid=f"r{i}") for i in range(6)]
    half = write_lines(tmp_path / "a.jsonl", records[:3]).read_bytes()
    whole = write_lines(tmp_path / "a.jsonl", records).read_bytes()
    store, output = boto3.client("s3"), f"{bucket}/ingested"
    steps = []
    for body in (half, half, whole):
        store.put_object(Bucket="bucket", Key="logs/a.jsonl", Body=body)
        s3fs.S3FileSystem.clear_instance_cache()  # as a new process, which has listed nothing yet
        result = claw("ingest", f"{bucket}/logs", "-o", output, "--json")
        assert result.code == 0, result.err
        steps.append((result.report["steps"], result.report["steps_total"]))
    assert steps == [(3, 3), (0, 3), (3, 6)]
    result = claw("curate", output, "--where", "response <> 'yo 1'", "-o", tmp_path / "c", "--json")
    assert result.report["steps_kept"] == 5
    result = claw("curate", output, "--where", "true", "-o", f"{bucket}/curated")
    assert result.code == 2
    assert "is in an object store" in result.err


def test_remote_data_is_attached_to_by_two_at_once_and_both_land(bucket, tmp_path, claw):
    log = write_lines(tmp_path / "a.jsonl", [pair([user("hi")], assistant("yo"), uid="r0")])
    output = f"{bucket}/attached"
    assert claw("ingest", log, "-o", output).code == 0
    place = location.existing(output)
    meeting, failed = threading.Barrier(3), []

    def work(number):
        row = {"native_id": "r0", f"x{number}": number, "same": number}
        path = write_lines(tmp_path / f"{number}.jsonl", [row])
        meeting.wait()
        try:
            attach(AttachConfig(data=output, file=str(path), name="feedback"))
        except Exception as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failed == []
    rows = table.read(place, "sidecars/feedback").to_pylist()
    assert sorted(row["same"] for row in rows) == [0, 1, 2]
    assert all(row[f"x{row['same']}"] == row["same"] for row in rows)
    assert sidecars.read(place, "feedback").num_rows == 1
    again = claw(
        "attach", output, tmp_path / "0.jsonl", "--name", "feedback", "--dry-run", "--json"
    )
    last = max(rows, key=lambda row: row["sidecar_version"])
    assert again.report["new"] == int(last["same"] != 0)


def test_remote_versions_are_listed_and_compared_and_changed_only_here(data):
    write(data, steps_like(0, 30))
    write(data, steps_like(30, 40))
    url = str(data.path)
    listed = log_of(LogConfig(input=url)).versions
    assert [(one.version, one.steps_added) for one in listed] == [(1, 10), (0, 30)]
    assert diff(DiffConfig(a=f"{url}@0", b=url)).steps_added == 10
    today = f"{listed[0].committed_at[:10]}"
    assert location.parse(f"{url}@{today}").version == 1
    with pytest.raises(NotFoundError, match="It has no tags"):
        location.parse(f"{url}@gold")
    assert location.parse(f"{url}-new@gold").path == remote.parse(f"{url}-new@gold")
    for work in (
        lambda: tag(TagConfig(input=url, name="gold")),
        lambda: restore(RestoreConfig(input=f"{url}@0")),
        lambda: optimize(OptimizeConfig(input=url)),
    ):
        with pytest.raises(UsageError, match="is in an object store, where only claw ingest"):
            work()
