"""`python -m adlro.lab.learn`, which `adlro train` runs."""

from __future__ import annotations

import importlib.util
import sys

from adlro.errors import with_extra

EXTRAS = ("torch", "onnx", "onnxscript", "tensorboard")


def main() -> None:
    """Trains, if its dependencies are installed."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing and "--help" not in sys.argv[1:]:
        sys.stderr.write(f"error: adlro train needs {', '.join(missing)}; install it {with_extra('train')}\n")
        sys.exit(1)
    from adlro.lab.learn.train import main as train

    train()


if __name__ == "__main__":
    main()
