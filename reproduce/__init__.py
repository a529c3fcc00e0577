"""The paper's tables and figures, run again beside the paper's numbers."""
