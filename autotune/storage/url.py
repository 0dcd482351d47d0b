"""The `--storage` URL: where studies are kept. Paths in, one absolute URL out.

`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///~/in-home.db` or
`postgresql+psycopg://user:password@host/database`. Everything after `sqlite:///` is the path as it
stands: blanks and `%` are ordinary characters.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from autotune.errors import StorageError

DEFAULT_URL = "sqlite:///studies/spectune.db"
SQLITE = "sqlite:///"
POSTGRESQL = "postgresql+psycopg://"
SPELLINGS = {
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
}


def resolve_storage(url: str | None, *, create: bool = True) -> str:
    """The storage URL with an absolute path; None means the default under the current folder.

    Makes the parent folder unless `create` is false (for reading). Resolving twice changes
    nothing. Raises StorageError, with a hint, for whatever cannot be a storage.
    """
    url = DEFAULT_URL if url is None else url
    if not _is_text(url):
        raise StorageError(f"storage {url!r} is not UTF-8", hint="name another file with --storage")
    scheme, separator, rest = url.partition("://")
    scheme = SPELLINGS.get(scheme, scheme)
    if not separator or not rest:
        raise StorageError(f"{url!r} is not a storage URL", hint=_suggestion(url))
    if scheme == "sqlite":
        return SQLITE + str(_sqlite_file(url, rest, create))
    if scheme == "postgresql+psycopg":
        if find_spec("psycopg") is None:
            raise StorageError(
                "PostgreSQL storage needs psycopg, which is not installed",
                hint="pip install 'spectune[postgresql]'",
            )
        _check_port(url)
        return POSTGRESQL + rest
    raise StorageError(
        f"storage {shown(url)!r}: unknown scheme {scheme!r}",
        hint=f"use {SQLITE}FILE or {POSTGRESQL}USER:PASSWORD@HOST/DATABASE",
    )


def _is_text(url: str) -> bool:
    """False for bytes that are no UTF-8, which Python takes in as surrogates."""
    try:
        url.encode()
    except UnicodeEncodeError:
        return False
    return True


def sqlite_path(url: str) -> Path | None:
    """The database file of a resolved URL; None for PostgreSQL."""
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None


def shown(url: str) -> str:
    """How the storage is called in messages: the file, or the URL without its password."""
    if (path := sqlite_path(url)) is not None:
        return str(path)
    masked = re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", masked)


def beside(url: str, suffix: str) -> Path:
    """A file that belongs to the storage: next to a SQLite file, else under `studies/`."""
    if (path := sqlite_path(url)) is not None:
        return path.with_name(f"{path.name}.{suffix}")
    database = url.partition("?")[0].rpartition("/")[2] or "postgresql"
    return Path("studies").absolute() / f"{database}.{suffix}"


def _check_port(url: str) -> None:
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        raise StorageError(
            f"storage {shown(url)!r}: {error}",
            hint=f"write {POSTGRESQL}USER:PASSWORD@HOST:PORT/DATABASE",
        ) from error


def _suggestion(url: str) -> str:
    if not url or "://" in url:
        return f"for example {DEFAULT_URL}"
    return f"for a SQLite file write {SQLITE}{url.removeprefix('sqlite:').lstrip(':')}"


def _sqlite_file(url: str, rest: str, create: bool) -> Path:
    if not rest.startswith("/"):
        raise StorageError(
            f"storage {url!r}: sqlite:// must be followed by a third slash and the path",
            hint=f"write {SQLITE}{rest}",
        )
    text = rest[1:]
    if text in ("", ":memory:") or text.startswith("file:") or "?" in text or "\0" in text:
        raise StorageError(
            f"storage {url!r} does not name a plain file",
            hint=f"a study must survive a restart: for example {DEFAULT_URL}",
        )
    try:
        path = Path(text).expanduser().resolve()
        if text.endswith("/") or path.is_dir():
            raise StorageError(
                f"storage {str(path)!r} is a folder", hint=f"write {SQLITE}{path}/spectune.db"
            )
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: no such home, a loop of links
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(
            f"the folder of storage {url!r} cannot be used: {reason}",
            hint="name another file with --storage",
        ) from error
    return path
