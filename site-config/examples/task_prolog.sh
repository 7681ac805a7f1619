#!/bin/sh
# A TaskProlog (slurm.conf) that has every job of a site record what torch takes of its GPUs, whoever submitted it: Slurm takes
# the "export NAME=value" lines into the task's environment. XMEM_RECORD=0 in the job's environment opts out. Set the two
# paths: `recorder` is in the package (python -c 'import xmem_slurm; print(xmem_slurm.__path__[0])'), on a disk that the nodes see.
recorder=/opt/xmem-slurm/lib/python3/site-packages/xmem_slurm/recorder
spool=/shared/xmem-slurm/outcomes

[ -n "$CUDA_VISIBLE_DEVICES" ] && [ "$XMEM_RECORD" != 0 ] && [ -z "$XMEM_RECORD_TO" ] && [ -d "$spool" ] || exit 0
echo "export PYTHONPATH=$recorder${PYTHONPATH:+:$PYTHONPATH}"
echo "export XMEM_RECORD_TO=$spool"
