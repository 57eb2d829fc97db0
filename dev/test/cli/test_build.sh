#!/bin/sh
# test_build.sh BINARY: make uses the variables of its command line; build options that are refused; the check that the
# processor has what the program was built for.
. "$(dirname "$0")/../lib.sh"

unset MAKEFLAGS MAKELEVEL
# The version: the number in CITATION.cff, and the commit if there is a repository.
mkdir -p copy/dev
cp -R "$repo/Makefile" "$repo/CITATION.cff" "$repo/tost" copy
cp "$repo"/dev/*.mk copy/dev
number=$(sed -n 's/^version: *//p' "$repo/CITATION.cff")
prints --version "train_gpt_tost $number"
# is TEXT: the version is TEXT
is() {
    make -s -C copy CC=cc OPENMP=0 CUDA=0 SANITIZE=0 MPI=0 build/cc/version >/dev/null
    check "version: expected $1, got $(cat copy/build/cc/version)" [ "$(cat copy/build/cc/version)" = "$1" ]
}
is "$number"
if command -v git >/dev/null; then
    in_copy() { (cd copy && HOME=$dir git -c user.name=a -c user.email=a@b "$@" >/dev/null 2>&1); }
    in_copy init && in_copy add Makefile && in_copy commit -m first
    commit=$(git -C copy rev-parse --short=10 HEAD)
    is "$number ($commit)"
    echo '# changed' >>copy/Makefile
    is "$number ($commit+)"
    rm -rf copy/.git
    is "$number"
else
    skip 'version: no git'
fi

execute "$(command -v gmake || echo make)" -C "$repo" -nB V=1 CC=echo CFLAGS=-march=first ARCH=-march=second \
    CPPFLAGS=-Dmarked LDFLAGS=-Lmarked AR=marked train_gpt_tost
check "ARCH replaces the -march of CFLAGS" grep -q -e '-march=first .*-march=second .*-c train_gpt_tost.c' stdout
check "CPPFLAGS is used to compile" grep -q -e '-Dmarked .*-c train_gpt_tost.c' stdout
check "LDFLAGS is used to link" grep -q -e '-o train_gpt_tost .*-Lmarked' stdout
check "AR is used" grep -q -e 'marked rcs ' stdout

if [ "$(uname -m)" = x86_64 ]; then
    execute "$(command -v gmake || echo make)" -C "$repo" -nB V=1 CC=cc CUDA=0 ARCH=-mfma CFLAGS= train_gpt_tost
    check "the version names vector extensions" grep -q 'DTOST_VERSION=.* FMA"' stdout
fi

# An MPI compiler wrapper whose command names two words of a compiler, and link flags of two words (Intel MPI).
printf '#!/bin/sh\n[ "$1" = -show ] && echo "ccache gcc -I\\"%s\\" -Xlinker -rpath -Xlinker \\"%s/lib\\" -lm"\n' "$dir" "$dir" >mpicc
printf '#define MPI_Init(a, b) 0\n' >mpi.h
chmod +x mpicc
succeeds make -n -C "$repo" MPI=1 MPICC="$dir/mpicc" CUDA=0 train_gpt_tost
check 'MPI=1 keeps all link flags of the wrapper' grep -q "Xlinker -rpath -Xlinker .$dir/lib. -lm " stdout
check 'MPI=1 without the words of its compiler' [ "$(grep -c ccache stdout)" -eq 0 ]

# A compiler without OpenMP
printf '#!/bin/sh\ncase " $* " in *" -fopenmp "*) exit 1 ;; esac\nexec %s "$@"\n' "${CC:-cc}" >plain_cc
chmod +x plain_cc
for option in 1 0; do
    succeeds make -n -C "$repo" CC="$dir/plain_cc" OPENMP=$option CUDA=0 MPI=0 train_gpt_tost
    check "OPENMP=$option without OpenMP: $(grep -o 'OpenMP: [^"]*' stdout)" \
        [ "$(grep -c 'OpenMP: no (one thread; for clang install libomp-dev' stdout)" -eq $option ]
done

# Fast math would remove the checks for NaN.
for flag in -Ofast -ffast-math -ffinite-math-only; do
    execute ${CC:-cc} -std=c11 -I"$repo" -I"$repo/tost" $flag -fsyntax-only -x c "$repo/tost/model.h"
    check "$flag is refused: $(cat stderr)" grep -q 'error.*NaN.*CFLAGS=-O3' stderr
done

# x87 arithmetic, the default for 32-bit x86, would give other results.
execute ${CC:-cc} -std=c11 -I"$repo" -I"$repo/tost" -D__i386__ -U__SSE2_MATH__ -fsyntax-only -x c "$repo/tost/model.h"
check "x87 is refused: $(cat stderr)" grep -q "error.*x87.*ARCH='-msse2 -mfpmath=sse'" stderr

# An installed program finds the starter; -o: the program is not made again
succeeds make -s -C "$repo" -o train_gpt_tost install DESTDIR="$dir/root" PREFIX=/usr
execute "$dir/root/usr/bin/train_gpt_tost" --help
check "the help names its data" says "$dir/root/usr/share/train_gpt_tost/starter_train" stdout

# The check of processor.c: with no features it passes; with all, it names one that an old processor lacks.
if [ "$(uname -m)" = x86_64 ] && old=$(command -v qemu-x86_64); then
    printf '%s\n' '#include <stdio.h>' '#include "base/processor.h"' \
        'int main(void) { processor_check(); return puts(processor_unused()) < 0; }' >main.c
    for features in '' ' AVX2 AVX512BF16 AVX512F '; do
        succeeds ${CC:-cc} -D_GNU_SOURCE -I"$repo/tost" -static -o "program${features:+_avx512}" main.c \
            "$repo/tost/base/processor.c" -DBUILT_FOR="\"$features\""
    done
    succeeds "$old" -cpu qemu64 ./program
    check "nothing is unused by an old processor: $(cat stdout)" [ -z "$(cat stdout)" ]
    succeeds "$old" -cpu max ./program
    check "FMA is unused: $(cat stdout)" says 'also has FMA: make ARCH=-march=native' stdout
    refuses 1 "$old -cpu qemu64 ./program_avx512" 'built for AVX512F, which this processor lacks'
else
    skip 'processor check: no qemu-x86_64 (qemu-user)'
fi
finish
