"""Runs that are ready to be registered, and a real MLflow server."""

from tests.registering_fixtures import migrated_database, ready_run, tiny_llama
from tests.servers.mlflow import mlflow_server
from tests.servers.s3 import s3_server

__all__ = ["migrated_database", "mlflow_server", "ready_run", "s3_server", "tiny_llama"]
