#!/bin/sh
# Starts a service with the code that numba compiled while the image was built:
#   start_compiled.sh MODULE
# The image's root is read-only, and numba uses no folder that it can't write to: so the code is copied to where it may.
# On a processor of another kind than the one that built the image numba compiles again, there.
set -eu
mkdir -p "$NUMBA_CACHE_DIR"
cp -R /app/compiled/. "$NUMBA_CACHE_DIR"
exec python -m "$1"
