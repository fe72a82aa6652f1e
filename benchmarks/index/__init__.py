"""Memory and look-up time of the index that KV events feed."""
