"""What every node of a run executes under torchrun, and the vocabulary that all steps share."""
