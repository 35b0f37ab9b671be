"""Tags: names for versions of a step table, kept in one small file beside it.

data@NAME is the version that NAME was given to. What a tag names stays readable: claw optimize
spares its files. The file is data/tags.json, {name: version}, and is replaced whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from clawcli.errors import OutputExistsError, StoreError, UsageError
from clawcli.store import artefact, log
from clawcli.store.location import DATE, TAGS, Location, here

_Version = Annotated[int, Meta(ge=0)]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def read(location: Location) -> dict[str, int]:
    """List the tags of a data directory: name -> version of the step table, by name.

    Returns:
        Empty where there is none.

    Raises:
        StoreError: the file of tags is damaged or cannot be read.
    """
    place = location.path / TAGS
    try:
        found = msgspec.json.decode(place.read_bytes(), type=dict[str, _Version])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except msgspec.DecodeError as error:
        raise StoreError(
            f"{place} is damaged: {error}.", "Restore it from a copy, or remove it and tag again."
        ) from error
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{place} cannot be read: {error.strerror}.", "Check the path.") from error
    return dict(sorted(found.items()))


def put(location: Location, name: str, version: int, *, force: bool = False) -> None:
    """Give a version a name.

    Whoever calls it holds table.lock, so that no other tag is lost.

    Args:
        location: the data directory; a version that it names does not count.
        name: letters, digits, dots, dashes and _; nothing that reads as a version or a date.
        version: version of the step table.
        force: take the name from the version that has it.

    Raises:
        UsageError: no tag can be called so, or the directory is in an object store.
        OutputExistsError: the tag is there and force is off.
        NotFoundError: there is no such version.
        StoreError: the tags cannot be read or written.
    """
    check_name(name)
    log.open_table(location.steps, version)
    tags = read(location)
    if name in tags and not force:
        raise OutputExistsError(
            f"{location.path} has the tag {name} already: it is version {tags[name]}.",
            "Choose another name, or add --force to move it.",
        )
    _write(location, {**tags, name: version})


def drop(location: Location, names: Collection[str]) -> None:
    """Take tags away; names that are no tags do not count. The versions stay as they are.

    Whoever calls it holds table.lock, so that no other tag is lost.

    Raises:
        UsageError: the directory is in an object store.
        StoreError: the tags cannot be read or written.
    """
    tags = read(location)
    left = {name: version for name, version in tags.items() if name not in names}
    if left != tags:
        _write(location, left)


def check_name(name: str) -> None:
    """Refuse a name that no tag can have.

    Raises:
        UsageError: it has other characters, or data@NAME would read as a version or a date.
    """
    for kind, pattern in (("version", r"\d+"), ("date", DATE)):
        if re.fullmatch(pattern, name):
            raise UsageError(
                f"A tag cannot be called {name}, which reads as a {kind}.",
                f"Call it v{name}, say.",
            )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"A tag cannot be called {name!r}.",
            "Use at most 100 letters, digits, dots, dashes and _; begin with a letter or digit.",
        )


def _write(location: Location, tags: dict[str, int]) -> None:
    place = here(location) / TAGS
    with artefact.replacing(place, force=True, ours=lambda path: path.is_file()) as temporary:
        temporary.write_bytes(msgspec.json.encode(dict(sorted(tags.items()))) + b"\n")
