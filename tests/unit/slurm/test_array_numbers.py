"""The numbers of an array, and the order in which they stand for all of it."""

import pytest

from xmem_slurm.slurm.array_numbers import MOST_SPREAD, ranges, spread


@pytest.mark.parametrize(
    ("array", "numbers"),
    [
        ("7", [7]),
        ("0-4", [0, 4, 2, 1, 3]),
        ("2-9:3%2", [2, 8, 5]),
        ("5,1-2,5", [5, 1, 2]),
        ("", []),
        ("4-2", []),
        ("a-b", []),
        ("1-3,", []),
    ],
)
def test_all_of_a_short_array_are_listed_its_ends_first(array: str, numbers: list[int]) -> None:
    assert spread(ranges(array)) == numbers


def test_of_a_long_one_so_many_are_spread_evenly() -> None:
    found = spread(ranges("0-999999"))
    assert len(found) == MOST_SPREAD == len(set(found))
    gaps = [
        later - earlier for earlier, later in zip(sorted(found), sorted(found)[1:], strict=False)
    ]
    assert max(gaps) <= 2 * min(gaps) + 2
