"""What rules save, or would save: every prompt is looked up as it was sent, and as it would have been otherwise."""
