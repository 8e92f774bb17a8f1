"""Post-training quantization to 8-bit integers.

`calibrate.py` observes activations, `ranges.py` chooses the range of each, `quantize.py` writes the
quantized graph, and `sensitivity.py` measures what each operator costs in accuracy.
"""
