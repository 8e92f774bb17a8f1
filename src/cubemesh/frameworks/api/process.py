"""What is kept for a whole process: set before its first program, changed by the next one?"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from cubemesh.schema.spec import ProgramSettings


@runtime_checkable
class ReadiesProcess(Protocol):
    """A `Framework` for which a process has to be made ready; others need not offer this."""

    def ready_process(self, program: ProgramSettings) -> None:
        """Set what counts from the first use of a device on, as environment variables that its
        driver reads; nothing that the user has set. Called before anything touches a device."""


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
