"""What steps and commands share of a Kubernetes cluster: connection, errors, jobs, pods and their logs."""
