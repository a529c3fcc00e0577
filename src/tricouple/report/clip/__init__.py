"""The report on image-text runs: retrieval, zero-shot, queries with answers, similarities, plan."""
