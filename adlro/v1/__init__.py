"""The contracts, generated from protos/adlro/v1 by `make protos`. Don't edit."""
