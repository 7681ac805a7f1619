#!/bin/bash
#SBATCH --gres=gpu:1
export PATH=/tmp/jobfull/bin:$PATH PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python
PYTHONPATH=../.. python simclr.py
