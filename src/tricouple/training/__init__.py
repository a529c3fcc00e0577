"""Training methods: what owns networks, beyond a loss of embeddings."""
