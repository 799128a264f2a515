"""`python -m adlro.cli`, the same as the command `adlro`."""

from adlro.cli import main

main()
