#!/bin/bash
#SBATCH -J nanogpt
#SBATCH --gres=gpu:1
#SBATCH -c 4 --mem=16G
#SBATCH -t 04:00:00
#SBATCH -o nanogpt-%j.out

set -e
work=${TMPDIR:-/tmp}/nanogpt-$SLURM_JOB_ID
python examples/nanogpt/prepare.py "$work/data"
python examples/nanogpt/train.py --data "$work/data" --out "$work/out"
rm -rf "$work"
