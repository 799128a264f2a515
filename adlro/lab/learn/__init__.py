"""Training of policies: environments on the simulator. Only this package uses Gymnasium (and, for networks, torch)."""
