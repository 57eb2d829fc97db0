#!/bin/sh
# Build options that are refused, and the check that the processor has what the program was built for.
. "$(dirname "$0")/../lib.sh"

# refused TEXT STATUS FRAGMENT COMMAND…: prints one line that contains FRAGMENT and exits with STATUS.
refused() {
    what=$1 status=$2 fragment=$3
    shift 3
    "$@" > out 2>&1
    got=$?
    check "$what: exit status $got, expected $status" [ $got -eq "$status" ]
    check "$what: expected one line with '$fragment', got: $(cat out)" \
        sh -c "[ \$(wc -l < out) -eq 1 ] && grep -qF -e '$fragment' out"
}

unset MAKEFLAGS MAKELEVEL
refused 'unknown BLAS' 2 'openblas, mkl, blis or accelerate' make -s -C "$repo" BLAS=atlas train_gpt_tost
refused 'missing BLAS' 2 'leave BLAS out' make -s -C "$repo" BLAS=accelerate train_gpt_tost
check 'make help with an unknown BLAS' sh -c "make -s -C '$repo' BLAS=atlas help > /dev/null"

# The version: the number in CITATION.cff, and the commit if there is a repository.
mkdir -p copy/dev
cp -R "$repo/Makefile" "$repo/CITATION.cff" "$repo/tost" copy
cp "$repo"/dev/*.mk copy/dev
number=$(sed -n 's/^version: *//p' "$repo/CITATION.cff")
version() { make -s -C copy CC=cc OPENMP=0 CUDA=0 BLAS=0 SANITIZE=0 MPI=0 build/cc/version >/dev/null && cat copy/build/cc/version; }
# is TEXT: the version is TEXT
is() { check "version: expected $1, got $(version)" [ "$(version)" = "$1" ]; }
check "a version number in CITATION.cff" [ -n "$number" ]
check "--version has this number: $("$binary" --version)" \
    sh -c "'$binary' --version | grep -qF 'train_gpt_tost $number'"
is "$number"
if command -v git >/dev/null; then
    in_copy() { (cd copy && HOME=$dir git -c user.name=a -c user.email=a@b "$@" >/dev/null 2>&1); }
    in_copy init && in_copy add Makefile && in_copy commit -m first
    commit=$(git -C copy rev-parse --short=10 HEAD)
    is "$number ($commit)"
    echo '# changed' >>copy/Makefile
    is "$number ($commit+)"
    mv copy/.git/HEAD copy/.git/hidden
    is "$number ($commit+)"   # git fails: the last version remains
    rm -rf copy/.git
    is "$number"
else
    skip 'version: no git'
fi

# Changing GENCODE recompiles the CUDA engine. This nvcc only records its arguments.
cp "$repo/train_gpt_tost.cu" copy
cat >nvcc <<'END'
#!/bin/sh
echo "$*" >>calls
while [ "$1" != -o ]; do shift; done
touch "$2"
END
chmod +x nvcc
for arch in 80 80 90; do
    make -s -C copy CC=cc NVCC="$dir/nvcc" GENCODE=-arch=sm_$arch build/cuda/train_gpt_tost.o >/dev/null
done
check "the CUDA engine by GENCODE: $(cat copy/calls)" \
    [ "$(grep -o 'arch=[^ ]*' copy/calls | tr '\n' ' ')" = 'arch=sm_80 arch=sm_90 ' ]

# A BLAS that pkg-config names by the path of its library, as MKL's package for pip does.
if ! command -v pkg-config > /dev/null; then
    skip 'BLAS=mkl: no pkg-config'
else
    echo 'void cblas_sgemm(void) {}' > blas.c
    echo 'void cblas_sgemm(void);' > mkl_cblas.h
    printf 'Name: mkl-sdl\nDescription: a stub\nVersion: 1\nCflags: -I%s\nLibs: %s/libmkl_rt.so.3\n' "$dir" "$dir" \
        > mkl-sdl.pc
    check 'BLAS=mkl by the path of its library' sh -c "${CC:-cc} -shared -fPIC -o libmkl_rt.so.3 blas.c &&
        PKG_CONFIG_PATH='$dir' make -n -C '$repo' BLAS=mkl CUDA=0 train_gpt_tost > make.out 2>&1 &&
        grep -q 'DTOST_BLAS=.*mkl.*libmkl_rt.so.3' make.out"
fi

# The check of processor.c: with no features it passes; with all, it names one that an old processor lacks.
echo 'void processor_check(void); int main(void) { processor_check(); return 0; }' > main.c
old=$(command -v qemu-x86_64 || true)
compile() {
    ${CC:-cc} -D_GNU_SOURCE -I"$repo/tost" -static -o "$1" main.c "$repo/tost/base/processor.c" -DBUILT_FOR="\"$2\""
}
if [ "$(uname -m)" != x86_64 ] || [ -z "$old" ]; then
    skip 'processor check: no qemu-x86_64 (qemu-user)'
elif check 'processor.c compiles' compile plain '' && compile avx512 ' AVX2 AVX512BF16 AVX512F '; then
    check 'a program for any processor' "$old" -cpu qemu64 ./plain
    refused 'a program for AVX-512' 1 'built for AVX512F, which this processor lacks' "$old" -cpu qemu64 ./avx512
fi
finish
