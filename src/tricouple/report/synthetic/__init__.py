"""What the page and the README show of a synthetic study: runs on mixtures of Gaussians."""
