"""Audit: checks that the figures of records and answers do not contradict one another.

Each file checks one kind of identity; `audit.py` runs all of them, `marking.py` removes the verdict
of a finding that fails.
"""
