"""Sizes in bytes, and how people write them."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def human(size: int) -> str:
    """Write a size in bytes as torch's own messages do: `14.20 GiB`, `34.00 MiB`, `512 B`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"
