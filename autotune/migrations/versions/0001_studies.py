"""Studies, windows, engine starts, failures."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "spectune_study",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(80), nullable=False, unique=True),
        sa.Column("plan_sha256", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("spectune", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("total_seconds", sa.Float, nullable=False),
        sa.Column("recommendation", sa.Text),
        sa.Column("finished_at", sa.Float),
        sa.UniqueConstraint("plan_sha256", "attempt", name="uq_spectune_study_plan_attempt"),
    )
    op.create_table(
        "spectune_window",
        sa.Column("id", sa.Integer, primary_key=True),
        _study(),
        sa.Column("arm", sa.String(200), nullable=False),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("block", sa.String(80), nullable=False),
        sa.Column("repeat", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.UniqueConstraint(
            "study_id", "arm", "n", "block", "repeat", name="uq_spectune_window_key"
        ),
    )
    op.create_table(
        "spectune_engine_start",
        sa.Column("id", sa.Integer, primary_key=True),
        _study(),
        sa.Column("arm", sa.String(200), nullable=False),
        sa.Column("method", sa.String(80), nullable=False),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("ix_spectune_engine_start_study", "spectune_engine_start", ["study_id"])
    op.create_table(
        "spectune_failure",
        sa.Column("id", sa.Integer, primary_key=True),
        _study(),
        sa.Column("method", sa.String(80), nullable=False),
        sa.Column("n", sa.Integer),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("last_words", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("ix_spectune_failure_study", "spectune_failure", ["study_id"])


def _study() -> sa.Column[int]:
    return sa.Column(
        "study_id",
        sa.Integer,
        sa.ForeignKey("spectune_study.id", ondelete="CASCADE"),
        nullable=False,
    )
