"""The stand-in CUDA libraries, with which a CUDA build of torch runs on a machine that has no GPU.

`builder.build` makes them for one torch: hand-written C in `src/`, generated defaults for every
other symbol that this torch needs (`needs`, `generate`). The probe maps them before torch is
imported. `src/README.md` is the map of the C.
"""
