"""The first step of `xsbatch`: a Ctrl-C while the rest is imported ends the process, silently, as
it ends sbatch.

Python turns Ctrl-C into an exception, and that into a traceback. `_signal` is built in: nothing is
imported before.
"""

import _signal  # type: ignore[import-not-found]


def main() -> None:
    """Run `cli.xsbatch`; where Ctrl-C is ignored, as behind `nohup` or `&`, it stays so."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from xmem_slurm.cli import xsbatch  # noqa: PLC0415 - what takes time

    xsbatch.main()


if __name__ == "__main__":
    main()
