#!/bin/sh
# build.sh FOLDER MPI [TARGET…]: builds the trainer and other targets with an MPI library, openmpi or mpich, in FOLDER/MPI.
# That folder has its own build/, so the programs in the repository stay as they are. Exit status 3: not installed.
set -eu
folder=$1 mpi=$2
shift 2
cc=$(command -v "mpicc.$mpi") || exit 3
repo=$(cd "$(dirname "$0")/../../.." && pwd)
mkdir -p "$folder/$mpi"
for name in Makefile dev tost train_gpt_tost.c; do ln -sfn "$repo/$name" "$folder/$mpi/$name"; done
unset MAKEFLAGS MAKELEVEL
exec make -s -C "$folder/$mpi" MPI=1 MPICC="$cc" CUDA=0 EMULATION=0 train_gpt_tost build/torture/faults.so "$@"
