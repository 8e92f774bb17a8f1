from cubemesh.schema.record import Part
from cubemesh.schema.serialization import from_plain, to_plain


def test_the_rest_of_a_step_in_an_old_store_is_unattributed():
    stored = {"name": "other", "seconds": 0.1, "method": "the mean step less all other parts"}
    found = from_plain(Part, stored)
    assert found.name == "unattributed"
    assert from_plain(Part, to_plain(found)) == found
