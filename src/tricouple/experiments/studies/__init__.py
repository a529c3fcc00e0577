"""Studies that decide when a three-marginal loss is worth it: ``tricouple study``."""
