"""How is a feature AND-ed to a `--constraint` expression, and do given node features satisfy one?

Slurm reads an expression from left to right, "&" and "|" binding alike: `a|b&c` means (a or b) and c. Parentheses group and
cannot be nested; `[a|b]` wants all nodes alike; `a*2` counts nodes. Sources: sbatch(1), `--constraint`;
`build_feature_list` in src/slurmctld/job_mgr.c (22.05) and `valid_feature_counts` in src/slurmctld/node_scheduler.c.
"""

from collections.abc import Collection

_OPERATORS = "&|"
_GROUPING = "()[]"


def conjoin(existing: str | None, feature: str) -> str | None:
    """Return an expression that wants `existing` and, on every node, `feature`; None if Slurm has no way to say it.

    There is none for node counts (`a*2&b`), and none that every release reads alike for an "|" outside a group beside
    one inside (`a|(b&c)`), as groups cannot be nested.
    """
    if not existing:
        return feature
    tokens = _tokens(existing)
    if tokens is None or evaluate(tokens, ()) is None or any("*" in token for token in tokens):
        return None
    level = 0
    outside: list[str] = []
    for token in tokens:
        level += (token in "([") - (token in ")]")
        if level == 0 and token not in _GROUPING:
            outside.append(token)
    if "|" not in outside:
        return existing if feature in outside else f"{existing}&{feature}"
    if any(token in _GROUPING for token in tokens):
        return None
    return f"({existing})&{feature}"


def satisfied_by(expression: str, features: Collection[str]) -> bool | None:
    """Say whether a node with these features satisfies the expression; None where that cannot be told.

    A matching OR (`[a|b]`) is satisfied by a node that has one of them: whether the job's nodes are alike is not asked.
    Node counts, and what is no expression, give None.
    """
    if not expression:
        return True
    tokens = _tokens(expression)
    return None if tokens is None else evaluate(tokens, features)


def evaluate(tokens: list[str], features: Collection[str]) -> bool | None:
    """Evaluate tokens from left to right; None if they are no expression, or count nodes."""
    value: list[bool | None] = [None]
    operator: list[str | None] = [None]
    for token in tokens:
        if token in "([":
            if len(value) > 2 or (value[-1] is not None and operator[-1] is None):
                return None
            value.append(None)
            operator.append(None)
            continue
        if token in _OPERATORS:
            if value[-1] is None or operator[-1] is not None:
                return None
            operator[-1] = token
            continue
        if token in ")]":
            operand = value.pop()
            if len(value) < 1 or operand is None or operator.pop() is not None:
                return None
        elif "*" in token:
            return None
        else:
            operand = token in features
        if value[-1] is None:
            value[-1] = operand
        elif operator[-1] is None:
            return None
        else:
            value[-1] = value[-1] and operand if operator[-1] == "&" else value[-1] or operand
        operator[-1] = None
    return value[0] if len(value) == 1 and operator[0] is None else None


def _tokens(expression: str) -> list[str] | None:
    """Split into names, operators and brackets; None where brackets do not match or a name has white space or quotes."""
    tokens: list[str] = []
    open_brackets: list[str] = []
    name = ""
    for character in expression:
        if character not in _OPERATORS + _GROUPING:
            if character.isspace() or character in "\"',!":
                return None
            name += character
            continue
        if name:
            tokens.append(name)
            name = ""
        if character in "([":
            if character == "(" and "(" in open_brackets:
                return None
            open_brackets.append(character)
        elif character in ")]" and (not open_brackets or open_brackets.pop() + character not in {"()", "[]"}):
            return None
        tokens.append(character)
    if name:
        tokens.append(name)
    return None if open_brackets or not tokens else tokens
