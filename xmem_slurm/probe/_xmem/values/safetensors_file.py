"""Files of safetensors whose large tensors are neither written nor read.

Those that are not written are holes: they are read as zeros, and take no room. The form is that of
safetensors 0.4 to 0.8 (safetensors/src/tensor.rs, `prepare`): the length of a header in 8 bytes,
the header in JSON, filled up with spaces to a multiple of 8, and the tensors, without gaps, those
of the widest numbers first, so that each lies at a multiple of its numbers' width.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _xmem.annotations import Device, Dtype, Tensor

_LENGTH_BYTES = _ALIGNMENT = 8
"""The header's length is written in so many bytes, and the header is filled up to a multiple of
them, so that the tensors behind it are aligned."""


def write(
    path: Any,
    tensors: dict[str, Tensor],
    metadata: dict[str, str] | None,
    types: Mapping[Dtype, str],
    least_hole: int,
) -> None:
    """Write tensors by name to the file `path`; of `least_hole` bytes and more, each is a hole.

    `types` are the names that safetensors has for types of torch; `metadata` are words by name, or
    None.
    """
    header: dict[str, Any] = {}
    end = 0
    if metadata is not None:
        header["__metadata__"] = metadata
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        header[name] = {
            "dtype": types[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    path = os.fsdecode(path)
    with open(path + ".part", "wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in order:
            tensor = tensors[name]
            if tensor.nbytes >= least_hole:
                file.seek(tensor.nbytes, 1)
            elif tensor.nbytes:
                host = tensor.detach().cpu()
                file.write(ctypes.string_at(host.data_ptr(), host.nbytes))
        file.truncate()  # a hole may be the last
    os.replace(path + ".part", path)  # the tensors may be mapped from the file as it was


class OnDevice:
    """A file that is open on the host (`safetensors.safe_open`), or a slice of one, whose tensors
    come on `device`.
    """

    def __init__(self, opened: Any, device: Device) -> None:
        self._opened, self._device = opened, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> OnDevice:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._opened.__exit__(*error)

    def __getitem__(self, place: Any) -> Tensor:
        return self._opened[place].to(self._device)

    def get_tensor(self, name: str) -> Tensor:
        return self._opened.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, in the order in which they lie in the file."""
        return {
            name: tensor.to(self._device) for name, tensor in self._opened.get_tensors().items()
        }

    def get_slice(self, name: str) -> OnDevice:
        return OnDevice(self._opened.get_slice(name), self._device)
