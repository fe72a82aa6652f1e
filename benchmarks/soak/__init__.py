"""Half an hour of steady, mixed load: memory stays flat, and no file descriptor is left behind."""
