"""The services, each a package and a process: `python -m services.<name>`. None imports another."""
