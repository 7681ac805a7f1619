"""What a script stopped with is put down to the network, which a dry run has not, only where it may
be for that."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import xmem_slurm

PROBE = Path(xmem_slurm.__file__).parent / "probe"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(PROBE)
    found = importlib.import_module("_xmem.process.network")
    yield found
    found.forget()


def stopped(script: Callable[[], object]) -> BaseException:
    """What the script raises."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any
        script()
    return raised.value


def test_an_error_elsewhere_is_not_put_down_to_what_was_asked_for_and_not_minded(
    network: ModuleType,
) -> None:
    def script() -> None:
        network._looked_up("counts.test", 443)
        raise AttributeError("TPU")

    assert not network.may_explain(stopped(script))


def test_an_error_of_the_line_that_asked_is(network: ModuleType) -> None:
    def script() -> None:
        raise ValueError(network._looked_up("hub.test", 443))

    assert network.may_explain(stopped(script))
    assert "hub.test" in network.missing()


def test_so_is_what_was_raised_in_its_place(network: ModuleType) -> None:
    def script() -> None:
        try:
            raise KeyError(network._looked_up("hub.test", 443))
        except KeyError:
            raise RuntimeError("no data") from None

    assert network.may_explain(stopped(script))


def test_so_is_a_file_that_is_not_there(network: ModuleType) -> None:
    network._requested("https://hub.test/data.bin", None, {}, "GET")
    assert network.may_explain(FileNotFoundError("data.bin"))


def test_so_is_an_end_without_an_exception(network: ModuleType) -> None:
    network._requested("https://hub.test/data.bin", None, {}, "GET")
    assert network.may_explain(None)
