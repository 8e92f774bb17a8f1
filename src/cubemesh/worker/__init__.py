"""Worker: one spec, one rank, one process: `python -m cubemesh.worker`.

It needs the standard library, numpy, psutil and its own framework, and nvidia-ml-py for the GPU's
telemetry, so that it runs from `PYTHONPATH=src` in any environment. It reports through its event
file.
"""
