"""The stop_training step: the pipeline's exit handler."""
