"""What trained encoders are worth: probes, retrieval, geometry."""
