"""The fault matrix: faults that are injected into real processes on several hosts of one machine.

`python -m tests.faults [FAULT ...]`, or `make faults`, runs it.
"""
