"""The check_nodes step."""
