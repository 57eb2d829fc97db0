#!/bin/sh
# build.sh FOLDER MPI [TARGET…]: builds the trainer and other targets with an MPI library, openmpi or mpich, or
# without one, plain, in FOLDER/MPI. That folder has its own build/, so the programs in the repository stay as they
# are. All trainers have the same version, without a commit. Exit status 3: the library is not installed.
set -eu
folder=$1 mpi=$2
shift 2
case $mpi in
    plain) cc='' ;;
    *) cc=$(command -v "mpicc.$mpi") || exit 3 ;;
esac
repo=$(cd "$(dirname "$0")/../../.." && pwd)
mkdir -p "$folder/$mpi"
for name in CITATION.cff Makefile dev tost train_gpt_tost.c; do ln -sfn "$repo/$name" "$folder/$mpi/$name"; done
# With the same flags, objects of the repository's build need not be compiled again.
objects=$repo/build/$(basename "${CC:-cc}")-openmp
if [ "$mpi" = plain ] && [ -d "$objects" ] && mkdir "$folder/plain/build" 2>/dev/null; then
    cp -Rp "$objects" "$folder/plain/build"
fi
unset MAKEFLAGS MAKELEVEL MPI MPICC
exec make -s -C "$folder/$mpi" ${cc:+MPI=1 "MPICC=$cc"} CUDA=0 EMULATION=0 train_gpt_tost build/torture/faults.so "$@"
