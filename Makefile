# make train_gpt_tost      the CPU trainer: needs a C11 compiler and make; uses OpenMP and OpenBLAS where they are found
# make train_gpt_tostcu    the CUDA trainer: needs nvcc and cuBLASLt (the CUDA toolkit)
# make test                builds and runs every test; its last line and its exit status are the verdict
# make torture             kills, starves and watches runs: 2 minutes on 2 cores; torture_short is a share of it, for CI
# make fuzz                every reader under libFuzzer, 20 seconds each
# make traffic             counts on a CPU the bytes that the CUDA kernels move: needs clang
# make bench               measures against the machine's limits and the peers that are installed; on a GPU dev/bench/gpu.py does
#
# BLAS=0, OPENMP=0 and CUDA=0 leave those out (CUDA=always: the tests are linked with it where no GPU is, too);
# HOST_LEG=0 leaves the kernels' run on a CPU out of the tests;
# SANITIZE=1 builds under the address and undefined-behaviour sanitizers;
# CC=clang another compiler; ARCH= the compiler's baseline processor instead of this machine's; WERROR=1 for CI.

CC      ?= cc
ARCH    ?= -march=native
OPENMP  ?= 1
BLAS    ?= 1
CUDA    ?= 1
HOST_LEG ?= 1
SANITIZE ?= 0
WERROR  ?= 0

# ---- what this machine has ----------------------------------------------------------------------------------------
# compiles TEXT FLAGS: non-empty if a program of that text builds and links with those flags
compiles = $(shell echo '$(1)' | $(CC) -x c - -o /dev/null $(2) 2>/dev/null && echo yes)

ifeq ($(call compiles,int main(void) { return 0; },$(ARCH)),)
  ARCH :=
endif
ifneq ($(OPENMP),0)
  HAVE_OPENMP := $(call compiles,int omp_get_max_threads(void); int main(void) { return omp_get_max_threads(); },-fopenmp)
endif
BLAS_CFLAGS := $(shell pkg-config --cflags openblas 2>/dev/null)
BLAS_LIBS   := $(or $(shell pkg-config --libs openblas 2>/dev/null),-lopenblas)
ifneq ($(BLAS),0)
  HAVE_BLAS := $(call compiles,extern void cblas_sgemm(void); int main(void) { cblas_sgemm(); return 0; },$(BLAS_LIBS) -lm)
  ifneq ($(HAVE_BLAS),)
    HAVE_BLAS := $(shell printf '\043include <cblas.h>\n' | $(CC) -x c - -fsyntax-only $(BLAS_CFLAGS) 2>/dev/null && echo yes)
  endif
endif

# ---- flags --------------------------------------------------------------------------------------------------------
# No fast-math. Contraction gives fused multiply-adds; errno and traps of libm's functions are of no use here and stand
# in the way of vectorising.
CFLAGS  ?= -O3
TOST_CFLAGS := -std=c11 -D_GNU_SOURCE -I. -Itost $(ARCH) -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-pass-failed
LIBS    := -lm
VARIANT := $(notdir $(lastword $(filter-out -%,$(CC))))
ifneq ($(HAVE_OPENMP),)
  TOST_CFLAGS += -fopenmp
  VARIANT := $(VARIANT)-openmp
else
  TOST_CFLAGS += -fopenmp-simd -Wno-unknown-pragmas
endif
ifneq ($(HAVE_BLAS),)
  TOST_CFLAGS += -DTOST_BLAS $(BLAS_CFLAGS)
  LIBS    := $(BLAS_LIBS) $(LIBS)
  VARIANT := $(VARIANT)-blas
endif
ifneq ($(SANITIZE),0)
  TOST_CFLAGS += -DTOST_SANITIZE -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
  VARIANT := $(VARIANT)-sanitize
endif
ifneq ($(WERROR),0)
  TOST_CFLAGS += -Werror
endif

# ---- programs -----------------------------------------------------------------------------------------------------
BUILD     := build/$(VARIANT)
FRONT     := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tost/*.c))
TEST_SRC  := $(wildcard dev/test/test_*.c)
TESTS     := $(patsubst dev/test/%.c,$(BUILD)/dev/test/%,$(TEST_SRC))
COMPILE    = $(CC) $(TOST_CFLAGS) $(CFLAGS)

all: train_gpt_tost

# Programs stand in the root whatever the variant: this stamp changes when it does, so that they are linked again.
build/variant: FORCE
	@mkdir -p build; { [ "$$(cat $@ 2>/dev/null)" = "$(VARIANT) $(COMPILE)" ] || \
	    echo "$(VARIANT) $(COMPILE)" > $@; }
FORCE:

$(BUILD)/flags: build/variant
	@mkdir -p $(@D) && { [ "$$(cat $@ 2>/dev/null)" = "$(COMPILE) $(FRONT)" ] || echo "$(COMPILE) $(FRONT)" > $@; }

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(COMPILE) $(FLAGS_$(notdir $*)) -MMD -MP -c $< -o $@

$(BUILD)/libtost.a: $(FRONT) $(BUILD)/flags
	@rm -f $@
	ar rcs $@ $(FRONT)

train_gpt_tost: $(BUILD)/train_gpt_tost.o $(BUILD)/libtost.a build/variant
	$(COMPILE) -o $@ $(filter %.o %.a,$^) $(LIBS)

# ---- CUDA ---------------------------------------------------------------------------------------------------------
# One binary for the GPUs from Ampere to the newest that this nvcc knows: machine code for those that are common, and for
# the rest PTX, which the driver compiles. What ptxas says of registers and spills stays beside it.
NVCC      ?= nvcc
OBJCOPY   ?= objcopy
KNOWN      = $(shell $(NVCC) --list-gpu-arch | sed -n 's/^compute_//p' | sort -n)
GENCODE    = $(foreach arch,$(sort $(filter 80 90 100 120,$(KNOWN)) $(lastword $(KNOWN))),-gencode arch=compute_$(arch),code=sm_$(arch)) \
             -gencode arch=compute_90,code=compute_90
CUDA_FLAGS = --threads 0 -O3 -std=c++17 -I. -Itost -Xcompiler -Wall,-Wextra $(if $(filter-out 0,$(WERROR)),-Werror all-warnings)
# -L of the toolkit's folders; those that are no stubs are searched when the program starts, too
CUDA_DIRS  = $(shell $(NVCC) --dryrun -c -x cu /dev/null -o /dev/null 2>&1 | sed -n 's/.*LIBRARIES= *//p')
CUDA_LIBS  = $(CUDA_DIRS) $(patsubst "-L%,"-Wl$(comma)-rpath$(comma)%,$(filter-out %/stubs",$(CUDA_DIRS))) \
             -lcublasLt -lcudart_static -lstdc++ -ldl -lrt -lpthread
comma     := ,

# NO_CUDA: why the tests are built without the CUDA engine, which takes minutes; empty where it can be compiled, linked and
# run, which is tried.
ifneq ($(filter test test_tost,$(MAKECMDGOALS)),)
  ifeq ($(CUDA),0)
    NO_CUDA := left out by CUDA=0
  else ifneq ($(SANITIZE),0)
    NO_CUDA := left out of a build under the sanitizers
  else ifeq ($(and $(shell command -v $(NVCC)),$(shell command -v $(OBJCOPY))),)
    NO_CUDA := built without nvcc
  else ifneq ($(CUDA),always)
    ifeq ($(shell { [ -e build/cuda/probe ] || { mkdir -p build/cuda && cd build/cuda && \
        printf '\043include <cublasLt.h>\nint main() { int n; return cublasLtGetVersion() == 0 || cudaGetDeviceCount(&n); }\n' \
            > probe.cu && $(NVCC) -arch=native -o probe.o -c probe.cu && $(CC) -o probe probe.o $(CUDA_LIBS) && \
        ./probe || { rm -f probe; false; }; }; } > /dev/null 2>&1 && echo yes),)
      NO_CUDA := built without CUDA: nvcc can build no program that runs cuBLASLt on a GPU here
    endif
  endif
endif
FLAGS_test_tost := $(if $(NO_CUDA),-DTOST_NO_CUDA='"$(NO_CUDA)"')

build/cuda/train_gpt_tost.o: train_gpt_tost.cu $(wildcard tost/*.h tost/*.cuh)
	@mkdir -p $(@D)
	@echo "the CUDA engine, for $(words $(filter -gencode,$(GENCODE))) kinds of GPU: a minute or more of nvcc"
	$(NVCC) $(CUDA_FLAGS) $(GENCODE) -Xptxas -v -c $< -o $@ 2> $@.ptxas || { cat $@.ptxas; exit 1; }

# The same object without its main: all it shows is the engine.
build/cuda/engine.o: build/cuda/train_gpt_tost.o
	$(OBJCOPY) --keep-global-symbol=tost_cuda_engine $< $@

train_gpt_tostcu: build/cuda/train_gpt_tost.o $(BUILD)/libtost.a build/variant
	$(COMPILE) -o $@ $(filter %.o %.a,$^) $(CUDA_LIBS) $(LIBS)

$(BUILD)/cuda: FORCE
	@mkdir -p $(@D) && { [ "$$(cat $@ 2>/dev/null)" = "$(NO_CUDA)" ] && [ -e $@ ] || echo "$(NO_CUDA)" > $@; }

$(BUILD)/test_tost.o: $(BUILD)/cuda
test_tost: $(BUILD)/test_tost.o $(if $(NO_CUDA),,build/cuda/engine.o) $(BUILD)/libtost.a build/variant
	$(COMPILE) -o $@ $(filter %.o %.a,$^) $(if $(NO_CUDA),,$(CUDA_LIBS)) $(LIBS)

# ---- tests and benches --------------------------------------------------------------------------------------------
$(BUILD)/dev/%: $(BUILD)/dev/%.o $(BUILD)/libtost.a
	$(COMPILE) -o $@ $^ $(LIBS)

# NO_HOST: why the kernels' run on a CPU is left out of the tests
HOST_CXX := $(CXX) -std=c++17
# -g1 and the address sanitizer without what undefined repeats of it: half the time to compile
HOST_SANITIZE := -g1 -fsanitize=address,undefined -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all -DTOST_SANITIZE
ifneq ($(filter test,$(MAKECMDGOALS)),)
  ifeq ($(HOST_LEG),0)
    NO_HOST := left out by HOST_LEG=0
  else ifeq ($(shell echo 'int main() { return 0; }' | $(HOST_CXX) -x c++ - -o /dev/null $(HOST_SANITIZE) 2>/dev/null && echo yes),)
    NO_HOST := no C++17 compiler with the address and undefined-behaviour sanitizers ($(CXX))
  endif
endif

# The kernels of the CUDA engine on a CPU, under the sanitizers: no GPU and no nvcc are needed.
HOST       = build/cuda_on_host
HOST_FLAGS = $(HOST_SANITIZE) -Wall -Wextra -Wno-unknown-pragmas -I. -Itost
# -O1 for the kernels: more takes longer to compile than it saves
HOST_O     = -O2
HOST_CUDA  = -DTOST_CUDA_ON_HOST -Idev/test/cuda_on_host
HOST_C     = $(patsubst %,$(HOST)/%.o,train_gpt_tost gemm init json model rng safetensors schedule util)
HOST_CPP   = $(patsubst dev/test/cuda_on_host/%.cpp,$(HOST)/%.o,$(wildcard dev/test/cuda_on_host/*.cpp))

vpath %.c tost
$(HOST_C): $(HOST)/%.o: %.c $(wildcard tost/*.h)
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -DTOST_NO_MAIN -O2 $(HOST_FLAGS) -c $< -o $@
$(HOST_CPP): $(HOST)/%.o: dev/test/cuda_on_host/%.cpp train_gpt_tost.cu \
                          $(wildcard tost/*.h tost/*.cuh dev/test/*.h dev/test/cuda_on_host/*.h)
	@mkdir -p $(@D)
	$(HOST_CXX) $(HOST_O) $(HOST_FLAGS) $(HOST_CUDA) -c $< -o $@
$(HOST)/kernels_test.o: HOST_O = -O1
$(HOST)/test: $(HOST_CPP) $(HOST_C)
	$(HOST_CXX) $(HOST_FLAGS) -o $@ $^ -lm -ldl -rdynamic

test: train_gpt_tost test_tost $(TESTS) $(if $(NO_HOST),,$(HOST)/test)
	@NO_HOST="$(NO_HOST)" dev/test/run.sh $(TESTS) $(if $(NO_HOST),,$(HOST)/test)

test_cuda_on_host: $(HOST)/test
	$(HOST)/test
# Each of many mutants of the kernels must fail that test. Without the sanitizers, which cost more than the rest; MUTANTS
# names some of them.
test_mutants:
	@$(MAKE) --no-print-directory HOST=build/mutants HOST_SANITIZE= mutants
mutants: $(HOST_CPP) $(HOST_C)
	@dev/test/cuda_on_host/mutants.sh "$(HOST_CXX)" "-O1 $(HOST_FLAGS) $(HOST_CUDA)" \
	    "$(filter-out $(HOST)/kernels_test.o,$(HOST_CPP) $(HOST_C))" $(MUTANTS)

# dev/cuda's benches, for the GPU at hand; dev/bench/gpu.py runs them.
CUDA_BENCHES = $(patsubst dev/cuda/%.cu,build/cuda/%,$(wildcard dev/cuda/bench_*.cu))
BENCH_ARCH  ?= native
build/cuda/bench_%.o: dev/cuda/bench_%.cu dev/cuda/bench.cuh train_gpt_tost.cu $(wildcard tost/*.h tost/*.cuh)
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_FLAGS) -arch=$(BENCH_ARCH) -c $< -o $@
build/cuda/bench_%: build/cuda/bench_%.o $(BUILD)/libtost.a
	$(COMPILE) -o $@ $^ $(CUDA_LIBS) $(LIBS)
bench_cuda: $(CUDA_BENCHES)

# The bytes of device memory that the kernels touch, counted on a CPU: clang calls the counter at each load and store. What
# would escape it is kept out: memcpy stays a call, which goes to the counter too, and no loop becomes one.
TRAFFIC_CXX  ?= clang++
TRAFFIC_COUNT = -O2 -fno-builtin -fno-vectorize -fno-slp-vectorize -Wno-pass-failed \
                -fsanitize-coverage=func,trace-loads,trace-stores
TRAFFIC_HOST  = $(filter-out $(HOST)/train_gpt_tost.o,$(HOST_C)) $(patsubst %,$(HOST)/%_on_host.o,cuda cublaslt runtime)
$(HOST)/counted.o: train_gpt_tost.cu $(wildcard tost/*.h tost/*.cuh dev/test/cuda_on_host/*.h)
	@mkdir -p $(@D)
	$(HOST_CXX) $(TRAFFIC_COUNT) $(HOST_FLAGS) $(HOST_CUDA) -DTOST_NO_MAIN -x c++ -c $< -o $@
	$(OBJCOPY) --redefine-sym memcpy=traffic_memcpy $@
$(HOST)/traffic: dev/cuda/traffic.cpp $(HOST)/counted.o $(TRAFFIC_HOST)
	$(HOST_CXX) -O2 $(HOST_FLAGS) $(HOST_CUDA) -o $@ $^ -lm
traffic:
	@$(MAKE) --no-print-directory HOST=build/traffic HOST_SANITIZE= HOST_CXX="$(TRAFFIC_CXX) -std=c++17" \
	    build/traffic/traffic >&2
	@build/traffic/traffic "$$(git describe --always --dirty 2>/dev/null || echo unknown)"

# Runs that are killed, starved of disk and power, watched for leaks and races. What valgrind and the race detector run is
# built for them: no vectors that valgrind does not know, no threads but those that clang's libomp tells the detector of.
# TORTURE_FLAGS="--suites kill,power --seed 3" runs some of it, or the same again.
TORTURE     = build/torture
KILLS      ?= 100
EVERY      ?= 1
PYTHON     ?= python3
WATCHED     = -std=c11 -D_GNU_SOURCE -I. -Itost -O1 -g -ffp-contract=fast -Wno-unknown-pragmas -Wno-pass-failed
WATCHED_SRC = $(wildcard tost/*.c) $(wildcard tost/*.h)
RACES_CC   ?= clang

$(TORTURE)/faults.so: dev/test/torture/faults.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -shared -fPIC -o $@ $< -ldl
$(TORTURE)/valgrind: train_gpt_tost.c $(WATCHED_SRC)
	@mkdir -p $(@D)
	$(CC) $(WATCHED) -o $@ $(filter %.c,$^) -lm
# the trainer, the test of the matrix product and a probe; absent where this compiler cannot build them, which is then said
$(TORTURE)/races: train_gpt_tost.c $(WATCHED_SRC) dev/test/test_gemm.c dev/test/torture/race_probe.c
	@mkdir -p $@
	-$(RACES_CC) $(WATCHED) -fopenmp -fsanitize=thread -o $@/train_gpt_tost train_gpt_tost.c $(filter tost/%.c,$^) -lm
	-$(RACES_CC) $(WATCHED) -fopenmp -fsanitize=thread -o $@/test_gemm dev/test/test_gemm.c $(filter tost/%.c,$^) -lm
	-$(RACES_CC) $(WATCHED) -fopenmp -fsanitize=thread -o $@/probe dev/test/torture/race_probe.c
	@touch $@

torture: train_gpt_tost $(TORTURE)/faults.so $(TORTURE)/valgrind $(TORTURE)/races
	@$(PYTHON) dev/test/torture/torture.py --binary ./train_gpt_tost --built $(TORTURE) --kills $(KILLS) --every $(EVERY) \
	    $(TORTURE_FLAGS)
torture_short:
	@$(MAKE) --no-print-directory torture KILLS=12 EVERY=24

# Every reader under libFuzzer, FUZZ_SECONDS each, or until FUZZ_RUNS inputs; FUZZ names some of them.
FUZZ_DIR      = build/fuzz
FUZZ_CC      ?= clang
FUZZ_SECONDS ?= 20
FUZZ_RUNS    ?= -1
FUZZ         ?= $(patsubst dev/test/fuzz/fuzz_%.c,%,$(wildcard dev/test/fuzz/fuzz_*.c))
FUZZ_FLAGS    = -std=c11 -D_GNU_SOURCE -I. -Itost -O1 -g -Wall -Wextra -Wno-unknown-pragmas -Wno-pass-failed -DTOST_SANITIZE -DTOST_NO_MAIN \
                -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FUZZ_OBJECTS  = $(patsubst %.c,$(FUZZ_DIR)/%.o,train_gpt_tost.c $(wildcard tost/*.c))

$(FUZZ_DIR)/%.o: %.c $(wildcard tost/*.h) dev/test/fuzz/fuzz.h
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -c $< -o $@
$(FUZZ_DIR)/fuzz_%: $(FUZZ_DIR)/dev/test/fuzz/fuzz_%.o $(FUZZ_OBJECTS)
	$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ -lm
$(FUZZ_DIR)/seeds: $(FUZZ_DIR)/dev/test/fuzz/seeds.o $(FUZZ_OBJECTS)
	$(FUZZ_CC) $(FUZZ_FLAGS) -o $@ $^ -lm
fuzz_built: $(FUZZ_DIR)/seeds $(patsubst %,$(FUZZ_DIR)/fuzz_%,$(FUZZ))
fuzz:
	@FUZZ_CC="$(FUZZ_CC)" MAKE="$(MAKE)" dev/test/fuzz/run.sh $(FUZZ_DIR) $(FUZZ_SECONDS) $(FUZZ_RUNS) $(FUZZ)

bench_built: $(patsubst %.c,$(BUILD)/%,$(wildcard dev/bench/*.c))
# The second bench is the same program with the built-in matrix product.
bench: train_gpt_tost $(BUILD)/dev/bench/bench
	@$(MAKE) --no-print-directory BLAS=0 bench_builtin > /dev/null
	@dev/bench/bench.sh $(BUILD)/dev/bench/bench build/bench_builtin

bench_builtin: $(BUILD)/dev/bench/bench
	cp $< build/bench_builtin

clean:
	rm -rf build train_gpt_tost train_gpt_tostcu test_tost

.PHONY: all test torture torture_short fuzz fuzz_built test_cuda_on_host test_mutants mutants bench bench_built bench_cuda bench_builtin traffic clean FORCE
.SECONDARY:

.DELETE_ON_ERROR:

-include $(shell find build -name '*.d' 2>/dev/null)
