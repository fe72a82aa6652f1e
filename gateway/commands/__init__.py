"""The commands of the command line, and the generators of shipped files."""
