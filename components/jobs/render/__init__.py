"""From a `TrainingJob` to a manifest: pure functions, without a cluster."""
