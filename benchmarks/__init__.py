"""Measurements of Shardline against others, against the machine, and against itself."""
