"""The storage itself: URLs, damaged, foreign and read-only databases, schema revisions."""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import BASE, make_block, make_plan, make_recommendation, make_window

from autotune.errors import StorageError
from autotune.storage.lock import FileLock
from autotune.store import (
    list_studies,
    load_study,
    open_study,
    remove_study,
    resolve_storage,
    shown,
    sqlite_path,
)

POSTGRESQL = os.environ.get("SPECTUNE_TEST_POSTGRESQL")  # an empty database


def fill(url):
    """One finished study with one window."""
    block = make_block()
    with open_study(url, make_plan()) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block))
        study.finish(make_recommendation(study.plan, study.id))
        return study.id


def tables_of(file):
    with closing(sqlite3.connect(file)) as raw:
        return {row[0] for row in raw.execute("SELECT name FROM sqlite_master")}


def one_line(error):
    assert "\n" not in error.message
    return error.message


# --------------------------------------------------------------------------------- URLs


def test_default_is_under_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_storage(None) == f"sqlite:///{tmp_path}/studies/spectune.db"
    assert (tmp_path / "studies").is_dir()


def test_relative_absolute_and_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url, path in {
        "sqlite:///new/s.db": "new/s.db",
        f"sqlite:///{tmp_path}/deep/er/s.db": "deep/er/s.db",
        "sqlite:///~/tune/study.db": "home/tune/study.db",
        "sqlite+pysqlite:///a/../s.db": "s.db",
    }.items():
        resolved = resolve_storage(url)
        assert resolved == f"sqlite:///{tmp_path}/{path}"
        assert resolve_storage(resolved) == resolved
        assert sqlite_path(resolved) == tmp_path / path
        assert (tmp_path / path).parent.is_dir()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "name", ["my studies/study 1.db", "100%/x%20y.db", "{a}/{b}.db", "#1/ü&=;'\".db", "a:b@c.db"]
)
def test_any_path_works(tmp_path, name):
    url = f"sqlite:///{tmp_path}/{name}"
    study_id = fill(url)
    assert (tmp_path / name).is_file()
    assert load_study(url).info.id == study_id
    with open_study(url, make_plan()) as study:
        study.optuna_study()
    remove_study(url, study_id)
    assert list_studies(url) == []
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [Path(name).name]


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s.db", "sqlite:///s.db"),
        ("/var/data/s.db", "sqlite:////var/data/s.db"),
        ("sqlite:s.db", "sqlite:///s.db"),
        ("sqlite://s.db", "sqlite:///s.db"),
        ("", "sqlite:///"),
        ("sqlite://", "sqlite:///"),
        ("sqlite:///", "sqlite:///"),
        ("sqlite:///:memory:", "survive"),
        ("sqlite:///s.db?mode=ro", "sqlite:///"),
        ("mysql://root@localhost/x", "postgresql+psycopg://"),
        ("sqlite:///~nobody-of-this-name/s.db", "--storage"),
    ],
)
def test_what_is_no_storage_is_refused_with_a_hint(tmp_path, monkeypatch, url, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError) as caught:
        resolve_storage(url)
    assert hint in caught.value.hint
    assert one_line(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_folders_are_refused(tmp_path):
    for url in (f"sqlite:///{tmp_path}", f"sqlite:///{tmp_path}/new/"):
        with pytest.raises(StorageError, match="is a folder") as caught:
            open_study(url, make_plan())
        assert caught.value.hint.endswith("/spectune.db")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be used"):
        resolve_storage(f"sqlite:///{tmp_path}/file/s.db")


def test_postgresql_needs_psycopg_and_passwords_stay_secret(monkeypatch):
    monkeypatch.setattr("autotune.storage.url.find_spec", lambda _: None)
    with pytest.raises(StorageError, match="psycopg") as caught:
        resolve_storage("postgresql+psycopg://me:secret@host/db")
    assert caught.value.hint == "pip install 'spectune[postgresql]'"
    monkeypatch.setattr("autotune.storage.url.find_spec", lambda _: "there")
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        url = resolve_storage(f"{scheme}://me:s:e@cret@host:5432/db?password=secret&x=1")
        assert url == "postgresql+psycopg://me:s:e@cret@host:5432/db?password=secret&x=1"
        assert shown(url) == "postgresql+psycopg://me:***@host:5432/db?password=***&x=1"
    with pytest.raises(StorageError) as caught:
        resolve_storage("mysql://me:secret@host/db")
    assert "secret" not in str(caught.value)


@given(st.text(max_size=30))
def test_resolving_never_fails_otherwise(text):
    for url in (text, f"sqlite:///{text}", f"postgresql://{text}"):
        try:
            resolved = resolve_storage(url, create=False)
        except StorageError as error:
            assert error.hint
        else:
            assert resolve_storage(resolved, create=False) == resolved


# -------------------------------------------------------------------- foreign and damaged


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE experiments (id)", "CREATE TABLE alembic_version (version_num)"],
        ["CREATE TABLE studies (id)", "CREATE TABLE students (id)"],
    ],
)
def test_a_foreign_database_stays_as_it_is(tmp_path, statements):
    file = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(file)) as raw:
        for statement in statements:
            raw.execute(statement)
    before = file.read_bytes()
    for use in (list_studies, load_study, lambda url: open_study(url, make_plan())):
        with pytest.raises(StorageError, match="belongs to another program"):
            use(f"sqlite:///{file}")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_optunas_own_database_is_welcome(tmp_path):
    import optuna

    url = f"sqlite:///{tmp_path}/o.db"
    optuna.create_study(storage=url, study_name="mine")
    assert list_studies(url) == []
    study_id = fill(url)
    assert optuna.get_all_study_names(url) == ["mine"]
    remove_study(url, study_id)
    assert optuna.get_all_study_names(url) == ["mine"]


@pytest.mark.parametrize("size", [0, 1])
def test_an_empty_file_is_a_new_database(tmp_path, size):
    file = tmp_path / "s.db"
    if size:
        sqlite3.connect(file).close()
    else:
        file.touch()
    assert list_studies(f"sqlite:///{file}") == []
    fill(f"sqlite:///{file}")
    assert len(list_studies(f"sqlite:///{file}")) == 1


def _text(file):
    file.write_text("model: x\n" * 200)


def _cut(file):
    fill(f"sqlite:///{file}")
    os.truncate(file, 3 * 4096)


def _stub(file):
    fill(f"sqlite:///{file}")
    os.truncate(file, 60)


def _overwritten(file):
    fill(f"sqlite:///{file}")
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xaa" * (size - 4096))


def _no_utf8(file):
    """Where the schema stands: SQLite quotes it in its own words, which are then no text."""
    fill(f"sqlite:///{file}")
    content = file.read_bytes()
    assert content.count(b"CREATE TABLE spectune_study")
    file.write_bytes(
        content.replace(b"CREATE TABLE spectune_study", b"CREATE \xe2\xff\xe2\xffE spectune_study")
    )


@pytest.mark.parametrize("damage", [_text, _cut, _stub, _overwritten, _no_utf8])
def test_a_damaged_file_is_one_line_at_once(tmp_path, damage):
    file = tmp_path / "s.db"
    damage(file)
    before = file.read_bytes()
    for use in (list_studies, load_study, lambda url: open_study(url, make_plan())):
        with pytest.raises(StorageError, match=r"is damaged|is not a SQLite database") as caught:
            use(f"sqlite:///{file}")
        assert str(file) in one_line(caught.value)
        assert caught.value.hint
    assert file.read_bytes() == before


def test_a_lock_while_opening_is_one_line(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    fill(url)
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked by another program") as caught:
            open_study(url, make_plan(), busy_timeout_seconds=0.05)
        assert one_line(caught.value)
        assert len(list_studies(url)) == 1  # looking is still possible
    with open_study(url, make_plan()):
        pass


# ------------------------------------------------------------------------------ read-only


@contextmanager
def mode_bits_count():
    """As root, give up the right to ignore file modes for a moment."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    full = (ctypes.c_uint32 * 6)()
    if libc.capget(header, full) != 0:
        pytest.skip("cannot give up root's rights here")
    reduced = (ctypes.c_uint32 * 6)(*full)
    reduced[0] &= ~0b110  # effective CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    if libc.capset(header, reduced) != 0:
        pytest.skip("cannot give up root's rights here")
    try:
        yield
    finally:
        libc.capset(header, full)


@contextmanager
def protected(*paths):
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & 0o555)
    try:
        with mode_bits_count():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def test_read_only_file_can_be_looked_at_and_not_written(tmp_path):
    file = tmp_path / "s.db"
    url = f"sqlite:///{file}"
    study_id = fill(url)
    with protected(file):
        assert [info.id for info in list_studies(url)] == [study_id]
        assert len(load_study(url).windows) == 1
        for use in (lambda: open_study(url, make_plan()), lambda: remove_study(url, study_id)):
            with pytest.raises(StorageError, match="is read-only") as caught:
                use()
            assert one_line(caught.value)
    assert len(load_study(url).windows) == 1


def test_read_only_folder_can_be_looked_at_and_not_written(tmp_path):
    folder = tmp_path / "ro"
    folder.mkdir()
    file = folder / "s.db"
    url = f"sqlite:///{file}"
    study_id = fill(url)
    with protected(file, folder):
        assert load_study(url).info.id == study_id
        assert load_study(url).info.state == "done"
        with pytest.raises(StorageError, match="cannot be written") as caught:
            open_study(url, make_plan())
        assert one_line(caught.value)
        with pytest.raises(StorageError, match="cannot be used"):
            open_study(f"sqlite:///{folder}/new/s.db", make_plan())
    assert [path.name for path in folder.iterdir()] == ["s.db"]


def test_read_only_folder_with_a_write_ahead_log(tmp_path, caplog):
    url = f"sqlite:///{tmp_path}/s.db"
    folder = tmp_path / "ro"
    folder.mkdir()
    fill(url)
    block = make_block(1)
    with open_study(url, make_plan()) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block))
        for suffix in ("", "-wal", "-shm"):  # as a killed process leaves them
            shutil.copy(f"{tmp_path}/s.db{suffix}", folder)
    with protected(folder, *folder.iterdir()):
        assert len(load_study(f"sqlite:///{folder}/s.db").windows) == 2
    (folder / "s.db-shm").unlink()
    with protected(folder, *folder.iterdir()):
        assert len(load_study(f"sqlite:///{folder}/s.db").windows) == 1
    assert "holds later changes that cannot be read" in caplog.text


def test_looking_leaves_nothing_behind(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    fill(url)
    before = (tmp_path / "s.db").read_bytes()
    load_study(url)
    list_studies(url)
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]
    assert (tmp_path / "s.db").read_bytes() == before


# ----------------------------------------------------------------------- schema revisions


def test_migrations_from_empty_equal_the_tables_and_repeat_harmlessly(tmp_path):
    import sqlalchemy as sa
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from autotune import migrations
    from autotune.storage.tables import REVISION, REVISIONS, VERSION_TABLE, metadata

    engine = sa.create_engine(f"sqlite:///{tmp_path}/m.db")
    for _ in range(2):
        with engine.begin() as connection:
            migrations.upgrade(connection)
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == REVISION
        migrated = connection.execute(sa.text("SELECT sql FROM sqlite_master ORDER BY name"))
        statements = [" ".join((row[0] or "").split()) for row in migrated]
    engine.dispose()
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert script.get_heads() == [REVISION]
    known = [each.revision for each in script.walk_revisions()]
    assert tuple(reversed(known)) == REVISIONS
    fresh = sa.create_engine("sqlite://")
    with fresh.begin() as connection:
        metadata.create_all(connection)
        created = connection.execute(sa.text("SELECT sql FROM sqlite_master ORDER BY name"))
        wanted = [" ".join((row[0] or "").split()) for row in created]
    assert [each for each in statements if VERSION_TABLE not in each and each] == [
        each for each in wanted if each
    ]


def test_a_newer_schema_is_refused_naming_both(tmp_path):
    file = tmp_path / "s.db"
    fill(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE spectune_version SET version_num = '0042'")
        raw.commit()
    for use in (list_studies, load_study, lambda url: open_study(url, make_plan())):
        with pytest.raises(StorageError, match=r"revision 0042, .* up to 0001") as caught:
            use(f"sqlite:///{file}")
        assert "upgrade spectune" in caught.value.hint


@pytest.mark.parametrize(
    ("revision", "remedy"), [("v2.6.0.a", "optuna storage upgrade"), ("v99", "pip install")]
)
def test_optuna_tables_of_another_release(tmp_path, revision, remedy):
    file = tmp_path / "s.db"
    fill(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        raw.commit()
    with pytest.raises(StorageError, match="another release of Optuna") as caught:
        open_study(f"sqlite:///{file}", make_plan())
    assert "copy the database" in caught.value.hint
    assert remedy in caught.value.hint
    assert len(load_study(f"sqlite:///{file}").windows) == 1  # ours can still be looked at


def test_a_new_database_has_both_programs_tables(tmp_path):
    fill(f"sqlite:///{tmp_path}/s.db")
    assert {"spectune_version", "alembic_version", "studies", "spectune_study"} <= tables_of(
        tmp_path / "s.db"
    )


# ---------------------------------------------------------------------------------- locks


def test_file_lock(tmp_path):
    first, second = FileLock(tmp_path / "x.lock"), FileLock(tmp_path / "x.lock")
    assert first.holder() is None
    assert first.acquire()
    assert not second.acquire(0)
    assert second.holder().startswith(f"pid {os.getpid()} on ")
    first.release()
    first.release()
    assert second.holder() is None
    assert second.acquire()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_stale_lock_file_is_no_lock(tmp_path):
    (tmp_path / "x.lock").write_text("pid 1 on elsewhere, which is longer than ours" * 3)
    lock = FileLock(tmp_path / "x.lock")
    assert lock.holder() is None
    assert lock.acquire()
    assert lock.holder().endswith(os.uname().nodename)


# --------------------------------------------------------------------------------- imports


def test_importing_the_store_is_cheap():
    code = (
        "import sys, autotune.store, autotune.cli.studies;"
        "print({'sqlalchemy', 'alembic', 'optuna', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


# ------------------------------------------------------------------------------ PostgreSQL


@pytest.mark.skipif(not POSTGRESQL, reason="SPECTUNE_TEST_POSTGRESQL names no database")
def test_postgresql(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = make_block()
    with open_study(POSTGRESQL, make_plan(), fresh=True) as study:
        study.save(BASE, block, 0, make_window(BASE, 0, block, flags=("\x00",)))
        study.engine_started(BASE, 1.0, error="\x00")
        study.add_seconds(2.0)
        study.optuna_study().ask()
        with pytest.raises(StorageError, match=rf"{study.id} is being run by pid {os.getpid()}"):
            open_study(POSTGRESQL, make_plan())
        assert load_study(POSTGRESQL, study.id).info.state == "running"
    assert load_study(POSTGRESQL, study.id).info.state == "interrupted"
    with open_study(POSTGRESQL, make_plan()) as again:
        assert again.id == study.id
        assert again.recall(BASE, 0, block).flags == ("\x00",)
        assert len(again.running_trials()) == 1
        again.finish(make_recommendation(again.plan, again.id))
    assert study.id in [info.id for info in list_studies(POSTGRESQL)]
    remove_study(POSTGRESQL, study.id)
    assert study.id not in [info.id for info in list_studies(POSTGRESQL)]
