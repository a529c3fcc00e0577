"""open_clip: a loss of image and text features at the scale that the model learns."""
