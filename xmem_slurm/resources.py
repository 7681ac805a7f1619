"""Where the files that ship beside the code are, in a wheel and in a checkout alike."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parent


def tree(name: str) -> Path:
    """Return the folder `templates` or `site-config`.

    A wheel carries them inside the package (`site-config` as `site_config`); an editable install and an unpacked sdist
    have them beside it.
    """
    inside = _PACKAGE / name.replace("-", "_")
    return inside if inside.is_dir() else _CHECKOUT / name
