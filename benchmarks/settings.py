"""The settings in which each side is measured: its fastest, and the one that takes the least memory."""

from benchmarks.peers import FSDP2, Setting

FASTEST = (
    Setting("trainer", padding_free=False),
    Setting("trl", padding_free=False),
)
"""For the ratio of rates."""

LEANEST = (
    Setting("trainer", padding_free=True, arguments={**FSDP2, "gradient_checkpointing": True}),
    Setting("trl", padding_free=True, arguments={**FSDP2, "gradient_checkpointing": True}),
)
"""For the ratio of memory."""

OURS_FASTEST: dict[str, object] = {}
OURS_LEANEST: dict[str, object] = {"activation_checkpointing": "full"}
"""Settings of the section `training`."""
