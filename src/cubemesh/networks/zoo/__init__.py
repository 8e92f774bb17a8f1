"""Network definitions, one family a file, each written like the table in its paper.

To add a network: write a function `(image_size, classes) -> Network` in its family's file and add
one line to `NETWORKS` in `cubemesh/networks/__init__.py`.
"""
