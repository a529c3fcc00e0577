"""What the page says about image encoders: the paper's tables, accuracy over sharpness, curves."""
