"""Places in object stores, with as much of pathlib.Path as tables need.

A data directory is a Path on this machine or a Remote; whoever has one asks it the same questions.
Credentials, region and endpoint come from the environment that the store's own tools read, for
fsspec as for deltalake. The packages of a store are extras and are imported when one is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from clawcli.errors import ClawError, MissingExtraError, StoreError, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
# deltalake writes other characters escaped and reads them escaped twice (1.6.6), so that a table
# would have two names
_URL = re.compile(r"(?:s3|gs)://[A-Za-z0-9._-]+(?:/[A-Za-z0-9._=+,@!'()-]+)*")
_AT_ONCE = 32


@dataclass(frozen=True, slots=True, order=True)
class Remote:
    """A place in an object store. There are no directories: one exists where keys begin so."""

    url: str
    """s3://bucket/key or gs://bucket/key, without a slash at the end."""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """What stands after the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The place that this one lies in."""
        return Remote(self.url.rpartition("/")[0])

    def is_dir(self) -> bool:
        """Tell whether any key lies below."""
        with _reached(self):
            return self.file_system().isdir(self.url)

    def exists(self) -> bool:
        """Tell whether a key has this name or lies below it."""
        with _reached(self):
            return self.file_system().exists(self.url)

    def iterdir(self) -> Iterator[Remote]:
        """List what lies directly below, in the order of names.

        Raises:
            FileNotFoundError: nothing does.
        """
        with _reached(self):
            found = self.file_system().ls(self.url, detail=False)
        for name in sorted(path.rstrip("/").rpartition("/")[2] for path in found):
            yield self / name

    def read_bytes(self) -> bytes:
        """Read a whole file.

        Raises:
            FileNotFoundError: it is not there.
        """
        with _reached(self):
            found = self.file_system().cat_file(self.url)
        return found if isinstance(found, bytes) else found.encode()

    def unlink(self) -> None:
        """Remove a file."""
        with _reached(self):
            self.file_system().rm_file(self.url)

    def file_system(self) -> AbstractFileSystem:
        """Return the fsspec file system of the store, one per process.

        Raises:
            MissingExtraError: its package is not installed.
        """
        import fsspec

        scheme = self.url.partition("://")[0]
        # others write here too, so that a listing that was kept would be wrong
        options: dict[str, object] = {"use_listings_cache": False}
        if scheme == "s3":
            # Parquet is read in the ranges that its footer names
            options |= {"endpoint_url": _s3_endpoint(), "default_cache_type": "none"}
        try:
            return fsspec.filesystem(scheme, **options)
        except ImportError as error:
            raise MissingExtraError(
                f"{self.url} needs the package {_PACKAGES[scheme]}, which is not installed.",
                f"pip install 'clawcli[{scheme}]'",
            ) from error


Place = Path | Remote
"""A file or directory on this machine or in an object store."""


def read_all(places: Sequence[Place]) -> Iterator[bytes]:
    """Read files that lie together, in their order; those of a store some at a time."""
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        first = some[0]
        if isinstance(first, Path):
            yield from (place.read_bytes() for place in some)
            continue
        with _reached(first):
            files = first.file_system()
            found = cast(dict[str, bytes], files.cat([str(place) for place in some]))
        yield from (found[str(files._strip_protocol(str(place)))] for place in some)


def is_remote(text: str) -> bool:
    """Tell whether a location is written as a URL; one that Path has normalised counts.

    Example:
        >>> is_remote("s3://bucket/data"), is_remote(str(Path("s3://bucket"))), is_remote("a:b/c")
        (True, True, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text) is not None


def parse(text: str) -> Remote:
    """Read the URL of a place.

    Raises:
        UsageError: tables cannot be kept there.

    Example:
        >>> parse("s3://bucket/team//data/")
        Remote(url='s3://bucket/team/data')
    """
    scheme, _, rest = text.partition("://")
    url = f"{scheme.lower()}://{re.sub(r'/+', '/', rest).strip('/')}"
    if scheme.lower() not in _PACKAGES:
        raise UsageError(
            f"{text} is not a place for tables.", "Name a local directory, s3://... or gs://..."
        )
    if not _URL.fullmatch(url) or {".", ".."} & set(url.split("/")):
        raise UsageError(
            f"A data directory cannot be at {text}: the table format would give it another name.",
            "Use a bucket, then letters, digits and ._=+,@!'()- between slashes.",
        )
    return Remote(url)


def storage_options(place: Place) -> dict[str, str] | None:
    """Say to deltalake what it does not read from the environment by itself."""
    if isinstance(place, Path) or not place.url.startswith("s3:"):
        return None
    endpoint = _s3_endpoint()
    if endpoint is None:
        return {}
    is_plain = endpoint.startswith("http://")
    return {"AWS_ENDPOINT_URL": endpoint, **({"AWS_ALLOW_HTTP": "true"} if is_plain else {})}


def _s3_endpoint(environment: Mapping[str, str] = os.environ) -> str | None:
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")


@contextmanager
def _reached(place: Remote) -> Iterator[None]:
    try:
        yield
    except (ClawError, FileNotFoundError):
        raise
    except Exception as error:  # each store has errors of its own
        words = " ".join(str(error).split()) or type(error).__name__
        raise StoreError(
            f"{place} cannot be reached: {words.rstrip('.')}.",
            "Check the URL and the credentials in the environment.",
        ) from error
