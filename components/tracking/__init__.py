"""What the steps and the command line share of MLflow: connection, runs, curves, versions."""
