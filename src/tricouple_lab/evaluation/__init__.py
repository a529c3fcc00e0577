"""How good representations are: linear probe, k-NN, confusion and geometry of frozen features."""
