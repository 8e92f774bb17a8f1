"""Inference engines that run an ONNX model: a file each, `program.py` is common to all."""
