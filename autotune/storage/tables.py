"""The tables of a study database. They live beside Optuna's in one file.

A change here needs a new file in migrations/versions and a new REVISION; a test compares both.
JSON columns are text: what is stored is exactly what the records print.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

REVISION = "0001"  # the newest schema this code knows
REVISIONS = ("0001",)  # all of them, oldest first
VERSION_TABLE = "spectune_version"  # alembic's default name is taken by Optuna

metadata = MetaData()


def _study_column() -> Column[int]:
    return Column(
        "study_id",
        Integer,
        ForeignKey("spectune_study.id", ondelete="CASCADE"),
        nullable=False,
    )


study = Table(
    "spectune_study",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(80), nullable=False, unique=True),  # what users call the study's id
    Column("plan_sha256", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),  # 1, 2, ... for one plan
    Column("plan", Text, nullable=False),  # records.Plan
    Column("spectune", String(40), nullable=False),  # version that created it
    Column("created_at", Float, nullable=False),  # Unix time, like every `at`
    Column("total_seconds", Float, nullable=False),
    Column("recommendation", Text),  # records.Recommendation
    Column("finished_at", Float),
    UniqueConstraint("plan_sha256", "attempt", name="uq_spectune_study_plan_attempt"),
)

window = Table(
    "spectune_window",
    metadata,
    Column("id", Integer, primary_key=True),
    _study_column(),
    Column("arm", String(200), nullable=False),  # Arm.key
    Column("n", Integer, nullable=False),
    Column("block", String(80), nullable=False),  # Block.key
    Column("repeat", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("content", Text, nullable=False),  # records.Window
    UniqueConstraint("study_id", "arm", "n", "block", "repeat", name="uq_spectune_window_key"),
)

engine_start = Table(
    "spectune_engine_start",
    metadata,
    Column("id", Integer, primary_key=True),
    _study_column(),
    Column("arm", String(200), nullable=False),
    Column("method", String(80), nullable=False),
    Column("live", Boolean, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("error", Text),
    Column("at", Float, nullable=False),
    Index("ix_spectune_engine_start_study", "study_id"),
)

failure = Table(
    "spectune_failure",
    metadata,
    Column("id", Integer, primary_key=True),
    _study_column(),
    Column("method", String(80), nullable=False),
    Column("n", Integer),  # NULL: the whole method
    Column("error", Text, nullable=False),
    Column("last_words", Text, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_spectune_failure_study", "study_id"),
)
