"""`python -m adlro.lab.candidates`, which `adlro learn` runs."""

from __future__ import annotations

import importlib.util
import sys

from adlro.errors import with_extra

EXTRAS = ("torch", "onnx", "onnxscript")


def main() -> None:
    """Learns, if its dependencies are installed."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing and not {"--help", "-h"} & set(sys.argv[1:]):
        sys.stderr.write(f"error: adlro learn needs {', '.join(missing)}; install it {with_extra('train')}\n")
        sys.exit(1)
    from adlro.lab.candidates.command import main as learn

    learn()


if __name__ == "__main__":
    main()
