"""Training by Lightning: batches, optimisers, the history of a run, several processes."""
