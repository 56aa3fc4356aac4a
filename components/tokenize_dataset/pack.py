"""Packing documents into samples without cutting any."""

import bisect
from collections import defaultdict
from collections.abc import Sequence


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign documents to samples by best fit decreasing.

    The longest document comes first, and each goes to the fullest sample that has room for it. The result needs
    at most 11/9 of the fewest samples possible, plus one (Johnson et al., 1974), and for documents of mixed
    lengths is close to full. Time is O(n log n).

    Args:
        lengths: Tokens of each document, from 1 to `capacity`.
        capacity: Tokens that a sample holds.

    Returns:
        For each sample the indices of its documents. The same lengths always give the same samples.
    """
    samples: list[list[int]] = []
    # Samples by the room that is left in them, and the rooms that occur, ascending.
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        assert 1 <= length <= capacity
        place = bisect.bisect_left(rooms, length)
        if place == len(rooms):
            room, sample = capacity, len(samples)
            samples.append([])
        else:
            room = rooms[place]
            sample = by_room[room].pop()
            if not by_room[room]:
                del rooms[place]
        samples[sample].append(index)
        if left := room - length:
            if not by_room[left]:
                bisect.insort(rooms, left)
            by_room[left].append(sample)
    return samples
