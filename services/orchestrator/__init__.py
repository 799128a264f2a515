"""The orchestrator: decides which waiting job starts on which GPU, launches it, and follows it to its end."""
