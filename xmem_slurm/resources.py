"""Where the files that ship with the code are, and how a template becomes a text.

A site can put a template of its own before any of ours: of the same name, in the same subfolder, in
the folder that its site file names (`templates`) or in `/etc/xmem-slurm/templates`. It is given the
same values as ours.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xmem_slurm.errors import UsageError

SITE_TEMPLATES = Path("/etc/xmem-slurm/templates")

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parent


def tree(name: str) -> Path:
    """Return the folder `templates` or `site-config`.

    A wheel carries them inside the package (`site-config` as `site_config`); an editable install
    and an unpacked sdist have them beside it.
    """
    inside = _PACKAGE / name.replace("-", "_")
    return inside if inside.is_dir() else _CHECKOUT / name


def template_places(part: str = "", site_folder: Path | None = None) -> list[Path]:
    """Return the folders in which a part's templates are looked for (`hooks`, `lab`, ...), a site's
    own first.
    """
    folders = [site_folder, SITE_TEMPLATES, tree("templates")]
    return [folder / part for folder in folders if folder is not None]


def render(
    places: Sequence[Path],
    name: str,
    values: Mapping[str, object],
    *,
    filters: Mapping[str, Callable[..., object]] | None = None,
    html: bool = False,
    sandboxed: bool = False,
) -> str:
    """Fill in the template of that name from the first of `places` that has it.

    What is not defined is an error, and so is, if `sandboxed`, all that reaches beyond the values:
    for templates that come from neither us nor the site.

    Raises:
        UsageError: the template has a mistake, or is nowhere; names file and line.
    """
    import jinja2  # noqa: PLC0415 - most submissions render nothing
    from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415

    environment = (SandboxedEnvironment if sandboxed else jinja2.Environment)(
        loader=jinja2.FileSystemLoader(places),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(filters or {})
    try:
        return environment.get_template(name).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(
            f"{error.filename or name}: line {error.lineno}: {error.message}"
        ) from error
    except jinja2.TemplateNotFound as error:
        raise UsageError(
            f"{error.name}: no such template in {', '.join(map(str, places))}"
        ) from error
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{_where(error, places) or name}: {error}") from error


def _where(error: Exception, places: Sequence[Path]) -> str:
    """Return file and line of the template in which an error arose: Jinja2 puts its templates into
    tracebacks.
    """
    frames = traceback.extract_tb(error.__traceback__)
    inside = [
        frame
        for frame in frames
        if any(Path(frame.filename).is_relative_to(place) for place in places)
    ]
    return f"{inside[-1].filename}: line {inside[-1].lineno}" if inside else ""
