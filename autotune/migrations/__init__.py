"""Schema changes of the study database, run by alembic from inside the package.

There is no alembic.ini: the caller hands over an open connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring spectune's tables to `revision` within the connection's transaction.

    Does nothing when they are there already. Optuna's tables are not touched.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "autotune:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
