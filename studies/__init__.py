"""Questions decided by runs: a hypothesis, what would refute it, a plan, a verdict."""
