"""Attempts of containers need Linux."""

import sys

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
