"""The preflight step."""
