#!/bin/sh
# Takes from a virtual environment what no running service reads: tests, sources of compiled modules, headers.
#   sh prune.sh DIRECTORY
set -eu
find "$1" -type d \( -name tests -o -name include \) -path '*/site-packages/*' -prune -exec rm -rf {} +
find "$1" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) \
  -path '*/site-packages/*' -delete
