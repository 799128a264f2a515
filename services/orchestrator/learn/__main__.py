"""`python -m services.orchestrator.learn`, which `adlro train` runs."""

from __future__ import annotations

import importlib.util
import sys

EXTRAS = ("torch", "onnx", "onnxscript", "tensorboard")


def main() -> None:
    """Trains, where what it needs is installed."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        said = "install what it needs with: pip install 'adlro[train]'"
        sys.stderr.write(f"error: adlro train needs {', '.join(missing)}; {said}\n")
        sys.exit(1)
    from services.orchestrator.learn.train import main as train

    train()


if __name__ == "__main__":
    main()
