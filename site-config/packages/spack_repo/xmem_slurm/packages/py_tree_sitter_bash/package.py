from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyTreeSitterBash(PythonPackage):
    """Bash grammar for tree-sitter."""

    homepage = "https://github.com/tree-sitter/tree-sitter-bash"
    pypi = "tree-sitter-bash/tree_sitter_bash-0.25.1.tar.gz"

    license("MIT")

    version("0.25.1", sha256="bfc0bdaa77bc1e86e3c6652e5a6e140c40c0a16b84185c2b63ad7cd809b88f14")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-setuptools@42:", type="build")
