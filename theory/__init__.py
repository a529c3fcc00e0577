"""The paper's theory as numerical experiments with verdicts: ``python -m theory``."""
