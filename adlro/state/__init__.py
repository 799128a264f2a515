"""Arrays of clusters and jobs at a moment, and the observations of policies; for services and simulator."""
