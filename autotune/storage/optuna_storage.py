"""Optuna's own tables in the same database."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from autotune.errors import StorageError
from autotune.storage.connect import BUSY_TIMEOUT_SECONDS, connector, explained
from autotune.storage.url import shown, sqlite_path

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import RDBStorage
    from optuna.trial import Trial


def open_optuna(url: str, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS) -> RDBStorage:
    """Optuna's storage in the database; makes its tables where there are none.

    Raises StorageError, before anything is changed, where another release of Optuna set up the
    tables and this one cannot use them.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # its progress is not ours
    path = sqlite_path(url)
    options: dict[str, Any] = {"pool_pre_ping": True}
    if path is not None:
        options["creator"] = connector(path, "mode=rwc", busy_timeout_seconds)
    template = url.replace("{", "{{").replace("}", "}}")  # Optuna formats the URL
    try:
        with optuna_explained(url):
            return optuna.storages.RDBStorage(
                template, engine_kwargs=options, skip_table_creation=_exists(url, options)
            )
    except RuntimeError as error:
        raise StorageError(
            f"Optuna {optuna.__version__} cannot use its tables in {shown(url)}: another release"
            " of Optuna made them",
            hint=f"copy the database, then: {_remedy(str(error), url)}",
        ) from error


def close_optuna(storage: RDBStorage) -> None:
    storage.remove_session()
    storage.engine.dispose()


@contextmanager
def optuna_explained(url: str) -> Iterator[None]:
    """`explained` for code that calls Optuna, which wraps the driver's errors in its own."""
    from optuna.exceptions import StorageInternalError

    with explained(url):
        try:
            yield
        except StorageInternalError as error:
            if isinstance(error.__cause__, sa.exc.SQLAlchemyError):
                raise error.__cause__ from error
            raise StorageError(f"{shown(url)}: {error}") from error


def open_optuna_study(
    url: str, storage: RDBStorage, name: str, plan_sha256: str, sampler: BaseSampler | None
) -> Study:
    """Create or load the study. Raises StorageError where one of this name has another plan."""
    import optuna

    with optuna_explained(url):
        study = optuna.create_study(
            storage=storage,
            sampler=sampler,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
        )
        owner = study.user_attrs.get("plan_sha256")
        if owner is None:
            study.set_user_attr("plan_sha256", plan_sha256)
    if owner not in (None, plan_sha256):
        raise StorageError(
            f"the Optuna study {name} belongs to another plan",
            hint="start a fresh study with --fresh",
        )
    return study


def running_trials(study: Study) -> list[Trial]:
    """The study's trials in state RUNNING, as objects that can be continued and told."""
    from optuna.trial import Trial, TrialState

    unfinished = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [Trial(study, frozen._trial_id) for frozen in unfinished]


def delete_optuna_study(url: str, name: str) -> None:
    """Remove an Optuna study and its trials; nothing happens where there is none."""
    storage = open_optuna(url)
    try:
        with optuna_explained(url):
            storage.delete_study(storage.get_study_id_from_name(name))
    except KeyError:
        return
    finally:
        close_optuna(storage)


def _exists(url: str, options: dict[str, Any]) -> bool:
    """Whether Optuna has finished making its tables (it writes alembic_version last)."""
    engine = sa.create_engine(url, **options)
    try:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return False
            query = sa.select(sa.func.count()).select_from(sa.table("alembic_version"))
            return bool(connection.execute(query).scalar())
    finally:
        engine.dispose()


def _remedy(reason: str, url: str) -> str:
    if "storage upgrade" in reason:
        address = url if sqlite_path(url) is not None else shown(url)
        return f"optuna storage upgrade --storage {shlex.quote(address)}"
    return "pip install --upgrade optuna"
