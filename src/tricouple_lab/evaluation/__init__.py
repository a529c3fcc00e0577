"""Evaluation of trained encoders: probes, retrieval, geometry."""
