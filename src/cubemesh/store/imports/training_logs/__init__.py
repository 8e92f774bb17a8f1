"""Samples per second from the training logs of other programs, one family of programs a file."""
