"""The common code of services: settings, logs, server bootstrap, error mapping, Redis. Imports no service."""

import os

# gRPC's C core writes lines of its own to stderr (one for each handshake that fails, say, which anyone can cause); what
# matters is in our log and in errors. It reads this when it is imported, so this stands here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
