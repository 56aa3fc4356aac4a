"""Measuring models by all ranks of a job: held-out loss, answers, and tasks of lm-eval."""
