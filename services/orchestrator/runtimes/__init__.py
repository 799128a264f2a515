"""Expected runtimes for the ledger: where they come from, and when they are asked for anew."""
