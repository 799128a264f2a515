"""ADLRO: places jobs on the GPUs of a mixed cluster. What the services share; imports no service."""

__version__ = "0.1.0"
