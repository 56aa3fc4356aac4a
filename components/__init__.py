"""The pipeline's steps, one folder each, and the little that they share."""
