"""Experiments that run measure in forks of a process that has imported their framework."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _forked(forked_servers):
    pass
