"""Ten minutes of trouble: replicas, gateways and Redis die and stop under load, and no client may notice."""
