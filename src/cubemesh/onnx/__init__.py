"""ONNX files of networks: `export.py` writes one, `operators.py` has the operators of each layer.

Needs the package onnx (`pip install 'cubemesh[onnx]'`), which is imported on use.
"""
