"""A distributed job of a run, from outside: described, launched, followed, and brought home through faults."""
