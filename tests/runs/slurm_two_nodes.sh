#!/bin/bash
#SBATCH --job-name=cubemesh-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=1-12:00:00
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --output=cubemesh-%j.out

set -euo pipefail
export PYTHONPATH='/opt/cube mesh'
export SRUN_CPUS_PER_TASK=64  # srun does not inherit it
hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"
exec /opt/python -m cubemesh run strong-scaling --set devices=16 --set 'networks=vgg16,alexnet; rm -r x' --hosts "$hosts"
