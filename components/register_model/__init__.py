"""The register_model step."""
