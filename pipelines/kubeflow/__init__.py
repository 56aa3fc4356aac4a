"""Kubeflow Pipelines: connection, runs and schedules; `shardline submit` and `schedule`."""
