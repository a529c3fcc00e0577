"""Configuration: Hydra groups of values (YAML) with their types (``schema``)."""
