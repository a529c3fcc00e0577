"""The tasks: images, image-text, text, the synthetic mixture."""
