"""The time that a queue of jobs reads, which only the test changes."""

from sqlalchemy import Connection


class Clock:
    """A clock in place of the database's."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self, connection: Connection) -> float:
        return self.now
