#!/bin/bash
#SBATCH --job-name=gpt2
#SBATCH --gres=gpu:h200:1          # the largest there is, to be safe
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=01:00:00
#SBATCH --output=gpt2-%j.out

python examples/gpt2/train.py
