"""The container images of the steps. Standard library only: component shells import it at compile time."""

IMAGE = "ghcr.io/shardline/shardline-python:0.1.0"
"""Shardline, kfp and the training stack with CUDA, for what trains and evaluates; steps install nothing."""

STEPS_IMAGE = f"{IMAGE}-steps"
"""The same without CUDA, for steps that need no GPU."""
