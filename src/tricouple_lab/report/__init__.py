"""Pages of runs and sweeps, and the figures of the documentation."""
