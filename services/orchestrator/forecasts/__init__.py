"""Expected starts of waiting jobs: made beside the event loop, kept until the jobs start, and judged then."""
