import json
from datetime import UTC, datetime, timedelta

import pytest
from table_data import commit, steps_like, three_days

from clawcli.errors import NotFoundError, OutputExistsError, StoreError, UsageError
from clawcli.store import location, log, tags
from clawcli.store.location import Location
from clawcli.store.remote import Remote


@pytest.fixture
def data(tmp_path):
    """Three versions."""
    three_days(tmp_path / "data" / "steps")
    return Location(tmp_path / "data")


def commit_at(place, version, day, hour=12):
    """Change when a version was committed."""
    entry = place.steps / log.FOLDER / log.entry_name(version)
    at = int(datetime(2026, 10, day, hour, tzinfo=UTC).timestamp() * 1000)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = at
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_tags_put_are_read_by_name_and_dropped(data):
    assert tags.read(data) == {}
    tags.put(data, "gold", 1)
    tags.put(data, "a.b-c_1", 0)
    assert list(tags.read(data).items()) == [("a.b-c_1", 0), ("gold", 1)]
    tags.drop(data, ["gold", "never there"])
    assert tags.read(data) == {"a.b-c_1": 0}
    assert sorted(path.name for path in data.path.iterdir()) == ["steps", "tags.json"]


def test_tag_that_exists_is_refused_and_moved_with_force(data):
    tags.put(data, "gold", 1)
    with pytest.raises(OutputExistsError, match=r"gold already: it is version 1\..*--force"):
        tags.put(data, "gold", 2)
    assert tags.read(data) == {"gold": 1}
    tags.put(data, "gold", 2, force=True)
    assert tags.read(data) == {"gold": 2}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("3", "reads as a version"),
        ("2026-10-31", "reads as a date"),
        ("2026-13-45", "reads as a date"),
        ("", "cannot be called"),
        ("a/b", "cannot be called"),
        ("a@b", "cannot be called"),
        ("-f", "cannot be called"),
        ("..", "cannot be called"),
        ("gold\n", "cannot be called"),
        ("x" * 101, "at most 100"),
    ],
)
def test_tag_with_a_bad_name_is_refused(data, name, words):
    with pytest.raises(UsageError, match=words):
        tags.put(data, name, 0)
    assert tags.read(data) == {}


def test_tag_on_a_version_that_does_not_exist_is_refused(data):
    with pytest.raises(NotFoundError, match=r"has no version 3\. Versions run from 0 to 2"):
        tags.put(data, "gold", 3)


def test_location_in_an_object_store_is_not_changed_in_place():
    with pytest.raises(UsageError, match="only claw ingest writes"):
        location.here(Location(Remote("s3://bucket/data")))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"gold": "1"}', b'{"gold": -1}'])
def test_tags_that_are_damaged_are_told(data, content):
    (data.path / "tags.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"tags\.json is damaged"):
        tags.read(data)


def test_location_with_a_tag_is_its_version(data):
    tags.put(data, "gold", 1)
    assert location.parse(f"{data.path}@gold") == Location(data.path, 1)
    with pytest.raises(
        NotFoundError, match=r"has no tag god\. Its tags: gold\. Versions run from 0 to 2"
    ):
        location.parse(f"{data.path}@god")


def test_location_with_a_tag_where_none_is_names_the_versions(data):
    with pytest.raises(NotFoundError, match=r"It has no tags\. Versions run from 0 to 2"):
        location.parse(f"{data.path}@gold")


def test_location_with_a_date_is_the_newest_version_of_that_day(data):
    for version, (day, hour) in enumerate([(2, 0), (2, 23), (5, 0)]):
        commit_at(data, version, day, hour)
    ask = {day: location.parse(f"{data.path}@2026-10-{day:02}").version for day in (2, 4, 5, 30)}
    assert ask == {2: 1, 4: 1, 5: 2, 30: 2}
    with pytest.raises(NotFoundError, match=r"no version yet on 2026-10-01.*made on 2026-10-02"):
        location.parse(f"{data.path}@2026-10-01")


def test_location_with_a_date_that_is_none_is_refused(data):
    for day in ("2026-02-30", "0000-01-01", "9999-12-31"):
        with pytest.raises(UsageError, match="no day of the calendar"):
            location.parse(f"{data.path}@{day}")


def test_location_with_an_at_that_is_no_data_directory_is_a_path(data, tmp_path):
    assert location.parse(f"{tmp_path}/new@home") == Location(tmp_path / "new@home")
    tags.put(data, "gold", 1)
    (tmp_path / "data@gold").mkdir()
    assert location.parse(f"{data.path}@gold") == Location(tmp_path / "data@gold")


def test_commits_are_listed_newest_first_with_what_they_did(data):
    commit(data.steps, steps_like(300, 305), txn=("claw", 1))
    found = list(log.commits(data.steps))
    assert [one.version for one in found] == [3, 2, 1, 0]
    assert [one.rows_added for one in found] == [5, 100, 100, 100]
    assert {(one.files_added, one.files_removed, one.is_change) for one in found} == {(1, 0, True)}
    assert all(one.info["command"] == "ingest" for one in found)
    now = datetime.now(UTC)
    assert all(one.at and now - timedelta(hours=1) < one.at <= now for one in found)
