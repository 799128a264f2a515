"""Expected runtimes for the ledger: their sources and their updates."""
