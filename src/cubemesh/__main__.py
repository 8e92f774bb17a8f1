"""`python -m cubemesh` is `cubemesh`."""

from cubemesh.cli import main

main()
