"""The chaos run: a few faults, counted rather than timed, and a lost record that it reports."""

import random

from cubemesh.store import Store


def test_nothing_is_lost_or_left_after_a_few_faults(ran):
    options = {"--actions": "4", "--pause": "0.5", "--kinds": "question,report", "--seed": "3"}
    output, found = ran("chaos", {**options, "--no-postgresql": "--no-postgresql"})
    assert "everything holds" in output
    assert found["wrong"] == []
    assert found["done"]["acknowledged record"] >= 2
    faults = [found["done"].get(name, 0) for name in ("kill", "stop", "full disk")]
    assert sum(faults) == 4


def test_a_record_that_is_not_in_the_store_is_reported(script, tmp_path):
    chaos = script("chaos")
    store = str(tmp_path / "s.sqlite")
    with Store.open(store):
        pass
    output = tmp_path / "1-question.txt"
    output.write_text("abcdef\nhalf an i")
    world = chaos.World(tmp_path, random.Random(0), ["question"], [store], None)
    world.ended.append(chaos.Activity("question", 1, output, store))
    (found,) = chaos._records(world, store)
    assert "record abcdef is 0 times" in found
