"""The container image of every step. Standard library only: component shells import it at compile time."""

IMAGE = "ghcr.io/shardline/shardline-python:0.1.0"
"""Holds Shardline, kfp and the training stack; steps install nothing at run time."""
