import os
import socket
import subprocess
import sys
import textwrap

import fsspec
import pytest

from clawcli.ingest.read.find import Found, find, is_url
from clawcli.ingest.read.stream import open_bytes


def write(root, *names, data="{}\n"):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data)


def below(root, found):
    return [source.path.removeprefix(f"{root}/") for source in found]


@pytest.fixture
def store():
    """A store in memory, emptied again."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def test_find_folder_gives_logs_by_name_and_leaves_the_rest(tmp_path):
    logs = [
        "a.jsonl", "b.json.gz", "c.traj", "d.eval", "e.parquet", "f.sse", "sub/g.ndjson.zst",
    ]  # fmt: skip
    others = ["notes.txt", ".hidden.jsonl", ".git/x.json", "sub/.cache/y.jsonl", "z.jsonl.bz2"]
    write(tmp_path, *logs, *others)
    found, problems = find([str(tmp_path)])
    assert (below(tmp_path, found), problems) == (logs, [])


def test_find_says_size_and_time(tmp_path):
    write(tmp_path, "a.jsonl", data="12345")
    os.utime(tmp_path / "a.jsonl", (0, 1000))
    (source,), _ = find([str(tmp_path)])
    assert (source.size, source.modified) == (5, 1000)


def test_find_same_file_named_in_several_ways_comes_once(tmp_path, monkeypatch):
    write(tmp_path, "a.jsonl", "b.jsonl")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    monkeypatch.chdir(tmp_path)
    found, problems = find(["a.jsonl", "./a.jsonl", "*.jsonl", str(tmp_path), "link.jsonl"])
    assert ([source.path for source in found], problems) == (["a.jsonl", "b.jsonl"], [])


def test_find_named_link_is_followed_out_of_its_folder(tmp_path):
    write(tmp_path, "out/a.jsonl")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "l.jsonl").symlink_to(tmp_path / "out" / "a.jsonl")
    (tmp_path / "dir").symlink_to(tmp_path / "out")
    found, problems = find([str(tmp_path / "in" / "l.jsonl")])
    assert (below(tmp_path, found), problems) == (["in/l.jsonl"], [])
    found, problems = find([str(tmp_path / "dir")])
    assert (below(tmp_path, found), problems) == (["dir/a.jsonl"], [])


def test_find_links_in_a_folder_stay_below_it_and_are_named(tmp_path):
    write(tmp_path, "out/a.jsonl", "in/sub/b.jsonl", "in/blobs/abc")
    inside = tmp_path / "in"
    (inside / "c.jsonl").symlink_to(tmp_path / "out" / "a.jsonl")
    (inside / "d").symlink_to(tmp_path / "out")
    (inside / "snapshot.jsonl").symlink_to("blobs/abc")
    found, problems = find([str(inside)])
    assert below(inside, found) == ["snapshot.jsonl", "sub/b.jsonl"]
    assert [problem.split(" leads out of ")[0] for problem in problems] == [
        f"{inside}/d", f"{inside}/c.jsonl",
    ]  # fmt: skip


def test_find_link_loop_ends(tmp_path):
    write(tmp_path, "a.jsonl")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    found, problems = find([str(tmp_path)])
    assert below(tmp_path, found) == ["a.jsonl"]
    assert [problem for problem in problems if "self.jsonl cannot be read" in problem]


def test_find_pipe_socket_and_device_are_problems_and_never_waited_for(tmp_path):
    write(tmp_path, "a.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.jsonl"))
        found, problems = find([str(tmp_path), "/dev/null"])
    assert below(tmp_path, found) == ["a.jsonl"]
    assert len(problems) == 3
    assert all("is a pipe, a socket or a device" in problem for problem in problems)


def test_find_missing_dangling_and_matching_nothing_are_problems_and_others_go_on(tmp_path):
    write(tmp_path, "a.jsonl")
    (tmp_path / "dangling").symlink_to("nowhere")
    names = [str(tmp_path / name) for name in ("none.jsonl", "dangling", "*.zip", "a.jsonl")]
    found, problems = find(names)
    assert below(tmp_path, found) == ["a.jsonl"]
    assert problems == [
        f"{names[0]} does not exist.",
        f"{names[1]} does not exist.",
        f"{names[2]} matches nothing: check the pattern.",
    ]


def test_find_folder_named_as_a_log_is_a_problem_and_still_searched(tmp_path):
    write(tmp_path, "x.jsonl/a.jsonl", "b.jsonl")
    found, problems = find([str(tmp_path)])
    assert below(tmp_path, found) == ["b.jsonl", "x.jsonl/a.jsonl"]
    assert problems == [f"{tmp_path}/x.jsonl is a folder, though it is named as a log."]


def test_find_folder_without_logs_is_a_problem(tmp_path):
    write(tmp_path, "notes.txt")
    found, problems = find([str(tmp_path)])
    assert found == []
    assert problems[0].startswith(f"{tmp_path} holds no log. Logs end in .json,")


def test_find_glob_stands_for_files_and_folders_as_in_a_shell(tmp_path):
    write(tmp_path, "run1/a.jsonl", "run2/b.jsonl", "run3.jsonl", "other/c.jsonl")
    found, problems = find([str(tmp_path / "run*")])
    assert below(tmp_path, found) == ["run1/a.jsonl", "run2/b.jsonl", "run3.jsonl"]
    assert problems == []


def test_find_name_that_looks_like_a_glob_is_taken_as_it_is(tmp_path):
    write(tmp_path, "a[1].jsonl", "a1.jsonl")
    found, _ = find([str(tmp_path / "a[1].jsonl")])
    assert below(tmp_path, found) == ["a[1].jsonl"]


def test_find_what_claw_wrote_is_left_out(tmp_path):
    write(tmp_path, "a.jsonl", "data/steps/_delta_log/0.json", "data/steps/p/x.parquet")
    write(tmp_path, "data/sidecars/rewards/_delta_log/0.json", "data/notes.json")
    write(tmp_path, "lone/_delta_log/0.json", "lone/y.parquet")
    manifest = '{"claw_version": "0.1.0", "kind": "tree", "config": {}, "inputs": [], "files": []}'
    write(tmp_path, "tree/manifest.json", data=manifest)
    write(tmp_path, "tree/nodes/n.parquet", "mine/manifest.json", "mine/l.jsonl")
    found, problems = find([str(tmp_path)])
    assert below(tmp_path, found) == ["a.jsonl", "mine/l.jsonl", "mine/manifest.json"]
    assert problems == []


@pytest.mark.parametrize("name", ["data", "data/steps"])
def test_find_what_claw_wrote_is_refused_when_named(tmp_path, name):
    write(tmp_path, "data/steps/_delta_log/0.json", "data/steps/p/x.parquet")
    found, problems = find([str(tmp_path / name)])
    assert found == []
    assert problems == [f"{tmp_path / name} was written by claw and is no log."]


def test_find_since_leaves_out_what_is_older(tmp_path):
    write(tmp_path, "old.jsonl", "new.jsonl")
    os.utime(tmp_path / "old.jsonl", (0, 999))
    os.utime(tmp_path / "new.jsonl", (0, 1000))
    found, problems = find([str(tmp_path), "-"], since=1000)
    assert [source.path for source in found] == [str(tmp_path / "new.jsonl"), "-"]
    assert problems == []


def test_find_events_of_a_conversation_are_one_source_that_grows(tmp_path):
    write(tmp_path, "c1/events/event-00001-b.json", "c1/meta.json", data='{"n": 1}')
    write(tmp_path, "c1/events/event-00000-z.json", "c1/events/other.json", data='{"n": 0}')
    os.utime(tmp_path / "c1/events/event-00001-b.json", (0, 5e9))
    found, _ = find([str(tmp_path)])
    by_path = dict(zip(below(tmp_path, found), found, strict=True))
    events = by_path.pop("c1/events")
    assert set(by_path) == {"c1/meta.json", "c1/events/other.json"}
    assert events.members == ("event-00000-z.json", "event-00001-b.json")
    assert (events.size, events.modified, events.name) == (16, 5e9, "events")
    with open_bytes(events) as stream:
        assert stream.read() == b'{"n": 0}\n{"n": 1}'


def test_found_name_has_no_folder_and_no_compression_and_label_spells_bytes_out():
    found = [
        Found("/x/a.jsonl.gz"),
        Found("s3://b/a.jsonl.zst"),
        Found("-"),
        Found("x/\udcff.json"),
    ]
    assert [source.name for source in found] == ["a.jsonl", "a.jsonl", "-", r"\xff.json"]
    assert found[-1].label == r"x/\xff.json"


def test_find_name_that_is_no_utf8_can_be_opened(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_bytes(b"{}")
    (source,), _ = find([str(tmp_path)])
    with open_bytes(source) as stream:
        assert stream.read() == b"{}"


@pytest.mark.skipif(os.geteuid() != 0, reason="drops the privileges of root, which this is not")
def test_find_unreadable_file_and_folder_are_problems_and_others_go_on(tmp_path):
    write(tmp_path, "a.jsonl", "closed.jsonl", "locked/b.jsonl")
    (tmp_path / "closed.jsonl").chmod(0)
    (tmp_path / "locked").chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o755)
    script = f"""
        import os
        from clawcli.errors import StoreError
        from clawcli.ingest.read.find import Found, find
        from clawcli.ingest.read.stream import open_bytes
        os.seteuid(65534)
        found, problems = find([{str(tmp_path)!r}])
        print([source.path for source in found], *problems, sep="\\n")
        try:
            open_bytes(Found({str(tmp_path / "closed.jsonl")!r}))
        except StoreError as error:
            print(error.message)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        str([str(tmp_path / "a.jsonl")]),
        f"{tmp_path}/closed.jsonl cannot be read: Permission denied.",
        f"{tmp_path}/locked cannot be read: Permission denied.",
        f"{tmp_path}/closed.jsonl cannot be read: Permission denied.",
    ]


def test_find_in_a_store_gives_objects_folders_and_globs(store):
    for name in ("logs/a.jsonl", "logs/sub/b.json.gz", "logs/.h/c.jsonl", "logs/n.txt"):
        store.pipe(f"/{name}", b'{"a": 1}\n')
    for name in ("t/_delta_log/0.json", "t/x.parquet"):
        store.pipe(f"/logs/{name}", b"")
    folder = ["memory:///logs/a.jsonl", "memory:///logs/sub/b.json.gz"]
    for url in ("memory://logs", "memory://logs/"):
        found, problems = find([url])
        assert ([source.path for source in found], problems) == (folder, [])
    assert found[0].size == 9
    assert found[0].modified is not None
    found, problems = find(["memory://logs/*.jsonl", "memory://logs/n.txt", folder[0]])
    assert [source.path for source in found] == [folder[0], "memory:///logs/n.txt"]
    assert problems == []
    with open_bytes(found[0], 4) as stream:
        assert (stream.read(), stream.problem) == (b": 1}\n", None)


def test_find_in_a_store_what_is_not_there_is_a_problem(store):
    store.pipe("/logs/n.txt", b"")
    urls = ["memory://logs/x.jsonl", "memory://logs/*.jsonl", "memory://logs", "nostore://x/y"]
    found, problems = find(urls)
    assert found == []
    assert problems[:2] == [f"{url} cannot be read: nothing is there." for url in urls[:2]]
    assert problems[2].startswith("memory:///logs holds no log.")
    assert problems[3] == "nostore://x/y cannot be read: Protocol not known: nostore."


def test_find_store_without_driver_names_the_package():
    pytest.importorskip("fsspec")
    if _installed("adlfs"):
        pytest.skip("adlfs is installed")
    _, problems = find(["abfs://box/logs"])
    assert problems == [
        "abfs://box/logs cannot be read: the package adlfs is missing (pip install adlfs)."
    ]


def _installed(name):
    from importlib.util import find_spec

    return find_spec(name) is not None


def test_is_url_windows_paths_and_colons_are_none():
    assert [is_url(path) for path in ("a:b", "C:/x", "-", "s3://b")] == [False] * 3 + [True]
