"""The orchestrator: decides which waiting job starts on which GPU, and sees it through."""
