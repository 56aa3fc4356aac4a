"""What an error in reading a checkpoint tells: that it is damaged, or that the disk does not give it now."""

import errno

_DAMAGE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.EIO,
        errno.EBADMSG,  # a checksum of the file system's own
        getattr(errno, "EUCLEAN", errno.EIO),  # its structure
    }
)


def is_damage(error: OSError) -> bool:
    """Whether the error is the file's, so that it stays for as long as the file does.

    Any other (no permission, a server that is away, too many open files) may pass, and then all checkpoints of a
    run fail of it alike, though none has anything wrong with it.
    """
    return error.errno in _DAMAGE
