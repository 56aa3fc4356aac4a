"""The download_model step."""
