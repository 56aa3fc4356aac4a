"""A stand-in for a Kubernetes cluster with Kubeflow: an API server, controllers, and pods that are processes."""

from tests.doubles.cluster.cluster import FakeCluster

__all__ = ["FakeCluster"]
