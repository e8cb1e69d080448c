#!/bin/sh
# dlemu on several nodes with Slurm: sbatch examples/slurm.sh
#
# DATA is a folder that all nodes see, MPI the word of srun for your MPI: pmix for Open MPI, pmi2
# for MPICH and Intel MPI (srun --mpi=list shows what your Slurm has). A wrong word is told in one
# line. VENV is where dlemu is installed on every node, best on a local disk.
#SBATCH --job-name=dlemu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --exclusive
set -eu
DATA=${DATA:-/mnt/shared/unet3d}
MPI=${MPI:-pmix}
VENV=${VENV:-$HOME/dlemu-venv}

# No CPU binding: a rank starts readers, which need all CPUs.
srun --mpi="$MPI" --cpu-bind=none "$VENV/bin/dlemu" datagen workload=unet3d_h100 \
  dataset.data_folder="$DATA" dataset.num_files_train=auto
srun --mpi="$MPI" --cpu-bind=none "$VENV/bin/dlemu" run workload=unet3d_h100 \
  dataset.data_folder="$DATA" dataset.num_files_train=auto output.folder="dlemu-$SLURM_JOB_ID"
