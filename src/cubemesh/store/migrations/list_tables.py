"""Migration to version 3: tables for lists of runs, and files of runs in the database.

`runs`, `figures` and `run_experiments` are computed from the records, so `versions.prepare` makes
and fills them, in the same transaction.
"""

from __future__ import annotations

from sqlalchemy import Connection, text


def add_list_tables(connection: Connection) -> None:
    """Version 3: the table `artifacts`, and after it the tables computed from records."""
    data = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    connection.execute(
        text(
            "CREATE TABLE artifacts (run_id VARCHAR(40) NOT NULL, name VARCHAR(200) NOT NULL, "
            f"bytes INTEGER NOT NULL, data {data} NOT NULL, PRIMARY KEY (run_id, name))"
        )
    )
