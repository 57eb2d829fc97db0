# make [TARGET] [VARIABLE=VALUE ...]
#
#   train_gpt_tost     the CPU trainer (default target); needs a C11 compiler
#   train_gpt_tostcu   the CUDA trainer; needs the CUDA toolkit (nvcc, cuBLASLt)
#   test               builds and runs the quick tests
#   test_all           builds and runs all tests
#   bench              measures speed and memory; compares with PyTorch and tiktoken if PYTHON has them
#   clean              removes everything built by make
#   help               prints this text
# For developers (dev/test/README.md, dev/bench/README.md): test_mutants, torture, fuzz, traffic, sass, bench_cuda
#
#   BLAS=0             use the built-in matrix product, even if OpenBLAS is installed
#   OPENMP=0           build without OpenMP (single-threaded)
#   CUDA=0             build the tests without the CUDA engine; CUDA=always: with it, even without a GPU
#   EMULATION=0        skip the tests of the CUDA emulation
#   SANITIZE=1         build with the address and undefined-behavior sanitizers
#   CC=clang           use another compiler
#   ARCH=-march=...    target processor, default -march=native; ARCH= is the compiler's default
#   CFLAGS=-O3         optimization flags
#   WERROR=1           treat warnings as errors
#   PYTHON=python3     Python interpreter for tests and benchmarks
#   V=1                print the commands

ARCH     ?= -march=native
CFLAGS   ?= -O3
OPENMP   ?= 1
BLAS     ?= 1
SANITIZE ?= 0
WERROR   ?= 0

# ---- detect compiler flags and libraries --------------------------------------------------------------------------
# $(call compiles,TEXT,FLAGS): "yes" if the program compiles and links with these flags
compiles = $(shell printf '%b' '$(1)' | $(CC) -x c - -o /dev/null $(2) 2>/dev/null && echo yes)
include := \0043include

ARCH := $(if $(call compiles,int main(void) { return 0; },$(ARCH)),$(ARCH))
ifneq ($(OPENMP),0)
  HAVE_OPENMP := $(call compiles,$(include) <omp.h>\nint main(void) { return omp_get_max_threads(); },-fopenmp)
endif
ifneq ($(BLAS),0)
  BLAS_CFLAGS := $(shell pkg-config --cflags openblas 2>/dev/null)
  BLAS_LIBS   := $(or $(shell pkg-config --libs openblas 2>/dev/null),-lopenblas)
  HAVE_BLAS   := $(call compiles,$(include) <cblas.h>\nint main(void) { return !cblas_sgemm; },\
                   $(BLAS_CFLAGS) $(BLAS_LIBS) -lm)
endif

# No fast-math: it may reorder sums. Fused multiply-adds are allowed. errno and traps would prevent vectorization.
TOST_CFLAGS = -std=c11 -D_GNU_SOURCE -I. -Itost $(ARCH) -ffp-contract=fast -fno-math-errno -fno-trapping-math \
              -Wall -Wextra -Wno-pass-failed $(if $(filter-out 0,$(WERROR)),-Werror) \
              $(if $(HAVE_OPENMP),-fopenmp,-fopenmp-simd -Wno-unknown-pragmas) \
              $(if $(HAVE_BLAS),-DTOST_BLAS $(BLAS_CFLAGS)) \
              $(if $(filter-out 0,$(SANITIZE)),-DTOST_SANITIZE -g $(SANITIZERS) -fno-omit-frame-pointer)
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
COMPILE     = $(CC) $(TOST_CFLAGS) $(CFLAGS)
LIBS       := $(if $(HAVE_BLAS),$(BLAS_LIBS)) -lm
BUILD      := build/$(notdir $(lastword $(filter-out -%,$(CC))))$(if $(HAVE_OPENMP),-openmp)$(if \
              $(HAVE_BLAS),-blas)$(if $(filter-out 0,$(SANITIZE)),-sanitize)
LIB_OBJ    := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tost/*.c))
SUMMARY     = $(shell $(CC) --version | head -1), $(or $(ARCH),default processor), OpenMP: $(or $(HAVE_OPENMP),no), \
              matrix product: $(if $(HAVE_BLAS),OpenBLAS,built-in)

# ---- rules --------------------------------------------------------------------------------------------------------
# $(call say,CC FILE): starts a recipe line that prints "CC FILE" instead of the command; V=1 prints the command
say  = $(if $(filter-out 0,$(V)),,@$(ECHO) "$(1)";)
ECHO = $(if $(findstring s,$(firstword -$(MAKEFLAGS))),:,echo)

ifeq ($(MAKELEVEL),0)   # one job per core, unless -j is given
  MAKEFLAGS += -j$(or $(shell getconf _NPROCESSORS_ONLN 2>/dev/null),1)
endif

all: train_gpt_tost
train_gpt_tost: $(BUILD)/train_gpt_tost.o $(BUILD)/libtost.a build/variant
	$(call say,LINK $@) $(COMPILE) -o $@ $(filter %.o %.a,$^) $(LIBS)
$(BUILD)/libtost.a: $(LIB_OBJ) $(BUILD)/flags
	@rm -f $@ && ar rcs $@ $(LIB_OBJ)
$(BUILD)/%.o: %.c $(BUILD)/flags
	$(call say,CC $<) mkdir -p $(@D) && $(COMPILE) -MMD -MP -c $< -o $@

# Both files change only when the flags do. build/variant relinks the programs when the variant changes.
build/variant: FORCE
	@mkdir -p build; [ "$$(cat $@ 2>/dev/null)" = "$(COMPILE)" ] || { echo "$(COMPILE)" > $@; $(ECHO) "$(SUMMARY)"; }
$(BUILD)/flags: build/variant
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = "$(COMPILE) $(LIB_OBJ)" ] || echo "$(COMPILE) $(LIB_OBJ)" > $@

include dev/cuda.mk dev/test.mk dev/bench.mk

clean:
	rm -rf build train_gpt_tost train_gpt_tostcu test_tost
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.PHONY: all clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find build -name '*.d' 2>/dev/null)
