"""Networks that turn inputs into embeddings."""
