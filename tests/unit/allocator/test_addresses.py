"""The driver's addresses: chunks of 32 MiB from the top down, holes in them first."""

from xmem_slurm.allocator.addresses import Addresses
from xmem_slurm.units import MIB

END = 1 << 40


def taken(addresses: Addresses, *sizes: int) -> list[int]:
    return [(addresses.take(size * MIB) - END) // MIB for size in sizes]


def test_a_new_chunk_lies_below_and_its_rest_is_used_first() -> None:
    """As in the history of ResNet-101 on an H200: 98 MiB leave a hole of 30, and the lowest hole is
    taken."""
    addresses = Addresses(END)
    assert taken(addresses, 98, 98, 98, 26, 26, 26, 26) == [-128, -256, -384, -286, -158, -30, -416]
    assert taken(addresses, 4, 4, 6) == [-390, -260, -448], (
        "6 MiB were left of the last chunk, 4 of each other one"
    )


def test_a_context_has_two_chunks_and_its_pool_is_free_from_the_first_launch_on() -> None:
    """As in the history of ResNet-50 in float16, batches of 8, on an H200: 2 MiB, then 20, and 14
    after the launch."""
    addresses = Addresses(END, 132)
    assert taken(addresses, 2, 20, 4, 20) == [-98, -24, -4, -544]
    addresses.launched()
    assert taken(addresses, 12, 14, 16) == [-524, -512, -498], (
        "a hole below, then the pool from its beginning"
    )
    addresses.launched()
    assert taken(addresses, 384, 32) == [-482, -576], (
        "given back once; it had 414 MiB in a chunk of 416"
    )


def test_a_pool_in_whose_chunk_nothing_lives_is_free_room_after_the_launch() -> None:
    """As in the history of GPT-2 on an H200, whose first weight is larger than what that chunk has
    left."""
    addresses = Addresses(END, 132)
    assert taken(addresses, 148) == [-672]
    addresses.launched()
    assert taken(addresses, 36) == [-160]


def test_what_is_given_back_is_a_hole_and_an_empty_chunk_is_free_room() -> None:
    addresses = Addresses(END)
    assert taken(addresses, 20, 12, 32, 64) == [-32, -12, -64, -128]
    addresses.give_back(END - 32 * MIB, 20 * MIB)
    assert taken(addresses, 22, 10, 10) == [-160, -138, -32], (
        "the hole of 20 MiB is too small for the first of these"
    )
    addresses.give_back(END - 12 * MIB, 12 * MIB)
    assert taken(addresses, 22) == [-22], "holes beside each other are one"
    for start, size in ((-64, 32), (-32, 10), (-22, 22)):
        addresses.give_back(END + start * MIB, size * MIB)
    assert taken(addresses, 64) == [-64], "two chunks were empty, and are room for a larger one"
