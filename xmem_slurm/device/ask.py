"""`python -I -S ask.py FOLDER TORCH_DIR`: as `python -m xmem_slurm.device TORCH_DIR`, from inside a
dry run.

There is no compiler here that could be trusted, and no cache that may be written: who answers is a
process beside xsbatch (`dryrun/build_server.py`), at the socket `ask` in FOLDER.
"""

import json
import os
import socket
import sys


def main(folder: str, torch: str) -> int:
    """Ask; print the folder with the stand-ins, or on stderr why there are none."""
    os.chdir(folder)  # the path of a socket has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("ask")
        server.sendall(
            json.dumps([torch, os.environ.get("XMEM_DEVICE_CUDNN", "")]).encode() + b"\n"
        )
        with server.makefile(encoding="utf-8") as answer:
            built, why = json.loads(
                answer.read() or '["", "the stand-in CUDA libraries could not be built"]'
            )
    (sys.stdout if built else sys.stderr).write(f"{built or why}\n")
    return 0 if built else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
