"""Data sets: images, captions, texts, the generated mixture."""
