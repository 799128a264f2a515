"""`python -m adlro.lab.compare`, which `adlro compare` runs."""

from __future__ import annotations

from adlro.lab.compare.command import main

if __name__ == "__main__":
    main()
