"""Code of others, generated or copied; don't edit."""
