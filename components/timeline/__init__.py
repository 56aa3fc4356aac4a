"""The page about a run's life, which steps and commands share: its attempts, its faults, where its time went."""
