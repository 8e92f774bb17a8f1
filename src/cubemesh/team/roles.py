"""Roles of users, least first."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cubemesh.errors import unknown_name


class Role(enum.IntEnum):
    """What a user may do; each may do what those before it may."""

    VIEWER = 1
    """Read every page."""
    MEMBER = 2
    """Queue jobs, now or every night, and change their own."""
    ADMIN = 3
    """Change the jobs and schedules of others, and read the audit log."""

    @property
    def label(self) -> str:
        """As it is written: `viewer`."""
        return self.name.lower()


def role_named(name: str) -> Role:
    """The role of a name; UsageError for an unknown one."""
    for role in Role:
        if role.label == name:
            return role
    raise unknown_name("role", name, [role.label for role in Role], plural="roles")


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who asks a server for something."""

    name: str
    role: Role
