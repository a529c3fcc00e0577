"""Kernels: the couplings' linear algebra, fast in scalings and careful in logarithms."""
