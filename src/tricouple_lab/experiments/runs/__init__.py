"""What training runs of every kind share: their folder, weights, records, sweeps and studies."""
