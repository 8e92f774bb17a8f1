"""The registry finds each experiment, and what needs no store does without SQLAlchemy."""

import subprocess
import sys

from cubemesh.experiments.registry import EXPERIMENTS, SUITES

CATALOGUE = """
import sys
import cubemesh
from cubemesh.views import catalogue
cubemesh.list_networks()
cubemesh.list_experiments()
cubemesh.predict
print("sqlalchemy" in sys.modules)
"""


def test_each_name_is_that_of_its_experiment():
    assert [experiment.name for experiment in EXPERIMENTS.values()] == list(EXPERIMENTS)


def test_the_experiments_of_suites_are_registered():
    assert {e.experiment for s in SUITES.values() for e in s.entries} <= set(EXPERIMENTS)


def test_lists_and_forecasts_do_not_import_the_database():
    words = [sys.executable, "-c", CATALOGUE]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
