#!/bin/bash
#SBATCH --job-name=resnet50
#SBATCH --gpus=a100_80:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=02:00:00
#SBATCH --output=resnet50-%j.out

srun python examples/resnet50/train.py --batch-size 64
