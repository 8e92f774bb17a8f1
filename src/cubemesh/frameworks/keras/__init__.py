"""Keras 3: the network as a functional model, trained by `train_on_batch`.

`on_tensorflow.py`, `on_jax.py` and `on_torch.py` are the frameworks, one a backend; `program.py` is
what they share. A process has one backend (backend.py), so a run imports one of them.
"""
