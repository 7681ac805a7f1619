#!/bin/bash
#SBATCH --job-name=llama-fsdp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=h200:4     # the largest there is, to be safe
#SBATCH --cpus-per-task=32
#SBATCH --mem=256G
#SBATCH --time=12:00:00
#SBATCH --output=llama-fsdp-%j.out

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-endpoint="$head_node:29500" examples/llama_fsdp/train.py "$@"
