"""Every table and figure of the paper: run again, and set beside it: ``tricouple reproduce``."""
