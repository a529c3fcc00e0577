"""Runs that print tables: demonstrations, benchmarks and studies built on the core."""
