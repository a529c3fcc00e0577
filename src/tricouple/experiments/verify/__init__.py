"""The paper's theory as numerical experiments, each with a verdict (``tricouple verify``)."""
