"""Data: synthetic mixtures, images, captions, and how batches and views are drawn from them."""
