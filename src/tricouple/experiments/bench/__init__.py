"""Time, memory and growth of the losses beside the dense algorithm and other libraries."""
