"""Learning to place: environments on the simulator. Gymnasium (and, for networks, torch) live here alone."""
