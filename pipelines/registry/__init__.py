"""The commands about the registry: versions and rollback."""
