"""`python -m adlro.lab.evaluate`, which `adlro evaluate` runs."""

from __future__ import annotations

from adlro.lab.evaluate.command import main

# Worker processes import this file too, under another name.
if __name__ == "__main__":
    main()
