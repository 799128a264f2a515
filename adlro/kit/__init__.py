"""What makes a process a good service: settings, logs, server bootstrap, error mapping, Redis. Imports no service."""
