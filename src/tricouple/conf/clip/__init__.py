"""Configuration of ``tricouple clip``: types, and Hydra's groups of YAML files."""
