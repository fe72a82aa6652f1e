"""Several gateways against one, on the same recorded traffic."""
