"""What a node does beside its ranks: it notices what is wrong with them, with itself, and with the network."""
