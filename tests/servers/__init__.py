"""Real servers for the tests, on free ports of the loopback."""
