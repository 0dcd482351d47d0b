"""How studies are kept: URL, locks, tables, connections, side file. `autotune.store` is its face.

`tables`, `connect`, `database`, `ledger` and `optuna_storage` import SQLAlchemy at their top;
everything else imports them inside functions only.
"""
