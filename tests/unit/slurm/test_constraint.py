"""Constraint expressions: AND-ing a feature and asking whether features satisfy one."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xmem_slurm.slurm.constraint import conjoin, satisfied_by


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        (None, "f"),
        ("", "f"),
        ("a", "a&f"),
        ("a&b", "a&b&f"),
        ("a|b", "(a|b)&f"),
        ("a|b&c", "(a|b&c)&f"),
        ("[a|b]", "[a|b]&f"),
        ("[a|b]&c", "[a|b]&c&f"),
        ("(a|b)&c", "(a|b)&c&f"),
        ("c&(a|b)", "c&(a|b)&f"),
        ("f", "f"),
        ("a&f", "a&f"),
        ("f|a", "(f|a)&f"),
        ("a*2", None),
        ("a*2&b", None),
        ("[a*2&b*1]", None),
        ("a|(b&c)", None),
        ("a&&b", None),
        ("a&", None),
        ("&a", None),
        ("(a", None),
        ("(a]", None),
        ("((a|b)&c)", None),
        ("a b", None),
        ("a,b", None),
        ("!a", None),
        ("(a)(b)", None),
        ("()", None),
    ],
)
def test_conjoin(existing: str | None, expected: str | None) -> None:
    assert conjoin(existing, "f") == expected


@pytest.mark.parametrize(
    ("expression", "features", "expected"),
    [
        ("", "", True),
        ("a", "ab", True),
        ("a&b", "a", False),
        ("a|b", "b", True),
        ("a|b&c", "a", False),
        ("c&a|b", "b", True),
        ("mig|h&v|g".replace("mig", "m"), "m", False),
        ("(a|b)&c", "ac", True),
        ("[a|b]&c", "bc", True),
        ("[(a&b)|c]", "c", True),
        ("a*2", "a", None),
        ("a&(b", "ab", None),
    ],
)
def test_satisfied_by(expression: str, features: str, expected: bool | None) -> None:
    assert satisfied_by(expression, set(features)) is expected


def chain(items: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    rest = st.lists(st.tuples(st.sampled_from("&|"), items), max_size=most - 1)
    return st.builds(lambda first, more: first + "".join(map("".join, more)), items, rest)


name = st.sampled_from(["a", "b", "c", "f"])
group = st.one_of(chain(name, 3).map("({})".format), chain(name, 3).map("[{}]".format))
expression = chain(st.one_of(name, name, group), 4)


@given(expression)
def test_a_conjunction_means_both(text: str) -> None:
    joined = conjoin(text, "f")
    assume(joined is not None)
    assert joined is not None
    for present in product([False, True], repeat=4):
        features = {name for name, there in zip("abcf", present, strict=True) if there}
        assert satisfied_by(joined, features) == (satisfied_by(text, features) and "f" in features)


@given(st.text("ab&|()[]*2 !,"))
def test_any_text_is_an_expression_or_cannot_be_told(text: str) -> None:
    assert satisfied_by(text, {"a"}) in {True, False, None}
    joined = conjoin(text, "f")
    assert joined is None or satisfied_by(joined, {"a"}) is False
