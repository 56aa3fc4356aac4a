"""Jobs as people see and handle them: `shardline render`, `status`, `logs` and `stop`."""
