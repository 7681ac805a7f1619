from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyXmemSlurm(PythonPackage):
    """Right-size the GPU request of a Slurm job before it is queued, from a dry run that needs no
    GPU.
    """

    homepage = "https://pypi.org/project/xmem-slurm"
    pypi = "xmem-slurm/xmem_slurm-0.2.0.tar.gz"

    license("Apache-2.0")

    version("0.2.0")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-pydantic@2.11:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-tree-sitter@0.25:", type=("build", "run"))
    depends_on("py-tree-sitter-bash@0.25:", type=("build", "run"))
    depends_on("py-typer@0.19:", type=("build", "run"))
    depends_on(
        "gcc", type="run"
    )  # the stand-in CUDA libraries are built for each torch that is met
