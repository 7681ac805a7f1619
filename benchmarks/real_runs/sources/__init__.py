"""The repositories whose figures can be answered: a module for each, found by being here.

    SOURCE = "owner/name"
    def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]

`runs` lays out in `folder`, which is empty and thrown away, the synthetic data that the scripts in
`checkout` want, and yields the jobs that answer these rows, without the rows that none can. A
script is never edited. The docstring of each module names the packages that a job's Python needs
beside torch, and in what its data differ from the real ones.
"""
