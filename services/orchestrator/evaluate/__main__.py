"""`python -m services.orchestrator.evaluate`, which `adlro evaluate` runs."""

from __future__ import annotations

from services.orchestrator.evaluate.command import main

# Worker processes import this file too, under another name.
if __name__ == "__main__":
    main()
