"""The synthetic study: six methods on one mixture, what they learn and where they differ."""
