"""Sharded checkpoints of the training state, each either whole or absent.

All ranks write a checkpoint to a staging folder, with a checksum of each shard that the rank takes as it writes
it; rank 0 puts them into a manifest, and the folder is renamed. Only a sealed folder whose checksums hold is ever
loaded, so a save that was killed half-way costs nothing but its time.

    <run>/checkpoints/step-<n>/                       torch.distributed.checkpoint shards, .metadata, manifest.json
    <local folder>/<run's id>/rank-<r>/step-<n>/      state.pt of this rank, manifest.json

What stands here needs no torch; saving and loading stand in `checkpointer`, `choose`, `load` and `space`.
"""

from training.checkpoint.folders import checkpoints, newest_step, remove_all

__all__ = ["checkpoints", "newest_step", "remove_all"]
