"""Health of a node: small checks, each of which also runs alone, and a deep set that takes minutes.

None of it imports torch but `burn.py`, `links.py` and `rank.py`, which ranks run.
"""
