"""How is a feature AND-ed to a `--constraint` expression, and do given node features satisfy one?

Slurm reads an expression from left to right, "&" and "|" binding alike: `a|b&c` means (a or b) and
c. Parentheses group and cannot be nested; `[a|b]` wants all nodes alike; `a*2` counts nodes.
Sources: sbatch(1), `--constraint`; `build_feature_list` and `valid_feature_counts` in
src/slurmctld.
"""

import re
from collections.abc import Collection, Iterator

_OPEN = ("(", "[")
_CLOSED_BY = {"(": ")", "[": "]"}
_SYMBOLS = "&|()[]"


def conjoin(existing: str | None, feature: str) -> str | None:
    """Return an expression that wants `existing` and, on every node, `feature`; None if Slurm has
    no way to say it.

    There is none for node counts (`a*2&b`). An "|" outside a group beside one group (`a|(b&c)`)
    gives None, too, as groups cannot be nested.
    """
    if not existing:
        return feature
    if satisfied_by(existing, ()) is None:
        return None
    outside = list(_outside(existing))
    if "|" not in outside:
        return existing if feature in outside else f"{existing}&{feature}"
    if "(" in existing or "[" in existing:
        return None
    return f"({existing})&{feature}"


def satisfied_by(expression: str, features: Collection[str]) -> bool | None:
    """Say whether a node with these features satisfies the expression; None where that cannot be
    told.

    A matching OR (`[a|b]`) is satisfied by a node that has one of them: whether the job's nodes are
    alike is not asked. Node counts, and what is no expression, give None.
    """
    if not expression:
        return True
    value, unread = _evaluate(_tokens(expression), features, closed_by="", in_parentheses=False)
    return value if not unread else None


def _evaluate(
    tokens: list[str], features: Collection[str], closed_by: str, in_parentheses: bool
) -> tuple[bool | None, list[str]]:
    """Evaluate up to `closed_by` ("" for the end); return the value, None if it has none, and the
    tokens after it.
    """
    value: bool | None = None
    operator = ""
    while tokens:
        first, tokens = tokens[0], tokens[1:]
        operand: bool | None
        if first in _OPEN:
            if first == "(" and in_parentheses:
                return None, tokens
            operand, tokens = _evaluate(
                tokens, features, _CLOSED_BY[first], first == "(" or in_parentheses
            )
        else:
            operand = _has(first, features)
        if operand is None:
            return None, tokens
        value = {"": operand, "&": bool(value and operand), "|": bool(value or operand)}[operator]
        operator, tokens = (tokens[0], tokens[1:]) if tokens else ("", tokens)
        if operator == closed_by:
            return value, tokens
        if operator not in {"&", "|"}:
            return None, tokens
    return None, tokens


def _has(name: str, features: Collection[str]) -> bool | None:
    """Whether a feature is there; None for what is no plain name (`a*2`, `!a`, an operator out of
    place).
    """
    if name in _SYMBOLS or any(character.isspace() or character in "*!,\"'" for character in name):
        return None
    return name in features


def _tokens(expression: str) -> list[str]:
    """Split into names and the symbols between them."""
    return re.findall(r"[&|()\[\]]|[^&|()\[\]]+", expression)


def _outside(expression: str) -> Iterator[str]:
    """Yield the names and operators that stand in no group."""
    level = 0
    for part in _tokens(expression):
        level += (part in _OPEN) - (part in _CLOSED_BY.values())
        if level == 0 and part not in _CLOSED_BY.values():
            yield part
