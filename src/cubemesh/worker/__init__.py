"""One spec, one rank, one process: `python -m cubemesh.worker`.

The worker needs the standard library, numpy, psutil and its own framework, nothing else, so that it
runs from `PYTHONPATH=src` in any environment. It says everything through its event file.
"""
