from cubemesh.forecast.other_networks import bert_base, gnmt
from cubemesh.networks.cost import totals


def test_they_have_as_many_parameters_as_their_sources_say() -> None:
    # 110 million (BERT, section 3); 160 million (NVIDIA's GNMT v2 as trained).
    assert abs(bert_base().parameter_count / 110e6 - 1) < 0.02
    assert gnmt().parameter_count == 160_670_272
    # Six operations a parameter and token that is multiplied, and attention.
    flops = totals(bert_base(), 1).total.matrix_flops
    assert 0.9 < flops / (6 * bert_base().parameter_count * 384) < 1.3
