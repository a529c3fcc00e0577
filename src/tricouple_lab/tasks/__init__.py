"""What can be learned: images, image-text, text, the synthetic mixture."""
