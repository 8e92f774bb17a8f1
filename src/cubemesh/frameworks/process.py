"""What is kept for a whole process, and changed by the next program that is built in it?"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Resumes(Protocol):
    """A `Program` of a framework that keeps settings for the whole process, such as threads, which
    another program in it may have changed; others need not offer this."""

    def resume(self) -> None:
        """Set them again as this program's steps need them. Nothing may be in flight."""


@runtime_checkable
class KeepsFreed(Protocol):
    """A `Framework` whose arrays' memory stays with the process when they are freed; others need
    not offer this."""

    def return_freed(self) -> None:
        """Give back to the kernel what no array uses."""
