"""Host lists: read as Slurm reads them."""

import pytest

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm import hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a1,b-2.site", ["a1", "b-2.site"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[01,08-10],b1", ["a01", "a08", "a09", "a10", "b1"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert list(hostlist.expand(text)) == names


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a[1-", "a[]", "a[2-1]", "a[1-x]", "a b", "a[1]]", "$(a)", "a[1-99999999]"]
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(UsageError, match="is no host list"):
        hostlist.expand(text)


def test_no_list_is_longer_than_slurms_own_bound() -> None:
    with pytest.raises(UsageError, match="names more than 65536 hosts"):
        hostlist.expand("a[1-60000]b[1-60000]")
