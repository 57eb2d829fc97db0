# make [TARGET] [VARIABLE=VALUE ...]
#
#   train_gpt_tost     the CPU trainer (default target); needs a C11 compiler
#   train_gpt_tostcu   the CUDA trainer, for GPUs of compute capability 8.0 and later; needs the CUDA toolkit
#   test               builds and runs the quick tests
#   test_all           builds and runs all tests
#   bench              measures speed and memory; compares with PyTorch and tiktoken if PYTHON has them
#   install            copies the CPU trainer and its starter data to DESTDIR and PREFIX, by default /usr/local
#   clean              removes everything built by make
#   help               prints this text
# For developers (dev/test/README.md, dev/bench/README.md): test_aarch64, test_mutants, torture, fuzz, bench_cuda
#
#   OPENMP=0           build without OpenMP (single-threaded)
#   MPI=1              build for several processes, started with mpirun or srun; MPICC=mpicc is the compiler wrapper
#   NCCL=1             build train_gpt_tostcu for several GPUs, started with torchrun or, with MPI=1, with mpirun or
#                      srun; NCCL_HOME=DIR is the folder of NCCL if it is not in the toolkit
#   GENCODE=-arch=sm_90  build train_gpt_tostcu faster, for one compute capability only, here 9.0
#   CUDA=0             build the tests without the CUDA engine; CUDA=always: with it, even without a GPU
#   EMULATION=0        skip the tests of the CUDA emulation
#   SANITIZE=1         build with the address and undefined-behavior sanitizers
#   CC=clang           use another compiler
#   ARCH=-march=...    target processor, default -march=native; replaces a -march in CFLAGS. ARCH= (empty) leaves it to
#                      CFLAGS or the compiler
#   CFLAGS=-O3         optimization flags; CPPFLAGS, LDFLAGS and AR are used as well
#   WERROR=1           treat warnings as errors
#   PYTHON=python3     Python interpreter for tests and benchmarks
#   V=1                print the commands

ARCH     ?= -march=native
CFLAGS   ?= -O3
OPENMP   ?= 1
MPI      ?= 0
MPICC    ?= mpicc
SANITIZE ?= 0
WERROR   ?= 0

# ---- detect compiler flags and libraries --------------------------------------------------------------------------
# $(call compiles,TEXT,FLAGS): "yes" if the program compiles and links with these flags, which may name libraries
compiles = $(shell printf '%b' '$(1)' | $(CC) $(CPPFLAGS) -x c - -x none -o /dev/null $(2) $(LDFLAGS) 2>/dev/null && \
             echo yes)
include := \0043include
comma   := ,

ARCH := $(if $(call compiles,int main(void) { return 0; },$(ARCH)),$(ARCH))
ifneq ($(OPENMP),0)
  omp_program := $(include) <omp.h>\nint main(void) { return omp_get_max_threads(); }
  OMP_CFLAGS  := -fopenmp
  HAVE_OPENMP := $(call compiles,$(omp_program),$(OMP_CFLAGS))
  LIBOMP      := $(if $(HAVE_OPENMP),,$(shell brew --prefix libomp 2>/dev/null))
  ifneq ($(LIBOMP),)   # clang of macOS, with the library from Homebrew
    OMP_CFLAGS  := -Xpreprocessor -fopenmp -I$(LIBOMP)/include
    OMP_LIBS    := -L$(LIBOMP)/lib -lomp
    HAVE_OPENMP := $(call compiles,$(omp_program),$(OMP_CFLAGS) $(OMP_LIBS))
  endif
endif

# The flags that MPI's compiler wrapper passes, so that the compiler is the same as without MPI. Open MPI prints them
# with --showme; MPICH with -show, after the name of its compiler, which may have several words. All flags for linking
# are kept, such as Intel MPI's -Xlinker -rpath -Xlinker FOLDER.
ifneq ($(if $(filter-out clean help,$(or $(MAKECMDGOALS),all)),$(filter-out 0,$(MPI))),)
  mpi_flags   = $(or $(shell $(MPICC) --showme:$(1) 2>/dev/null),$(filter-out -c,$(shell \
                  $(MPICC) -show $(2) 2>/dev/null | sed 's/^[^ ]* *\([^- ][^ ]* *\)*//')))
  MPI_CFLAGS := $(filter -I% -D%,$(call mpi_flags,compile,-c)) -DTOST_MPI
  MPI_LIBS   := $(call mpi_flags,link,)
  HAVE_MPI   := $(call compiles,$(include) <mpi.h>\nint main(void) { return MPI_Init(0$(comma) 0); },\
                  $(MPI_CFLAGS) $(MPI_LIBS))
  ifeq ($(HAVE_MPI),)
    $(error MPI=$(MPI): $(MPICC) gives no working flags; install MPI (Debian: libopenmpi-dev or libmpich-dev), or set \
      MPICC to its compiler wrapper)
  endif
endif

# No fast-math: it may reorder sums. No contraction: results would depend on how a loop is divided (vector_math.h).
# errno and traps would prevent vectorization.
TOST_CFLAGS = -std=c11 -D_GNU_SOURCE -I. -Itost -ffp-contract=off -fno-math-errno -fno-trapping-math \
              -Wall -Wextra -Wno-pass-failed $(if $(filter-out 0,$(WERROR)),-Werror) \
              $(if $(HAVE_OPENMP),$(OMP_CFLAGS),-fopenmp-simd -Wno-unknown-pragmas) \
              $(if $(HAVE_MPI),$(MPI_CFLAGS)) $(if $(filter LP64,$(BUILT_FOR)),,-D_FILE_OFFSET_BITS=64) \
              $(if $(filter-out 0,$(SANITIZE)),-DTOST_SANITIZE -g $(SANITIZERS) -fno-omit-frame-pointer)
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
COMPILE     = $(CC) $(TOST_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(ARCH)
BUILT_FOR  := $(shell $(CC) $(CPPFLAGS) $(CFLAGS) $(ARCH) -dM -E -x c /dev/null 2>/dev/null | \
                sed -n 's/^.define __\([A-Z0-9_]*[A-Z0-9]\)_* 1$$/\1/p')
LIBS       := $(LDFLAGS) $(if $(HAVE_MPI),$(MPI_LIBS)) $(if $(HAVE_OPENMP),$(OMP_LIBS)) -lm
NO_OPENMP  := $(if $(filter-out 0,$(OPENMP)), (one thread; for clang install libomp-dev; on macOS$(comma) libomp))
BUILD      := build/$(notdir $(lastword $(filter-out -%,$(CC))))$(if $(HAVE_OPENMP),-openmp)$(if \
              $(HAVE_MPI),-$(notdir $(MPICC)))$(if $(filter-out 0,$(SANITIZE)),-sanitize)
LIB_OBJ    := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tost/*.c tost/*/*.c))
SUMMARY     = $(shell $(CC) --version | head -1), $(or $(ARCH),default processor), OpenMP: $(or \
              $(HAVE_OPENMP),no$(NO_OPENMP))$(if $(HAVE_MPI),$(comma) MPI: $(MPICC))

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
	@rm -f $@ && $(AR) rcs $@ $(LIB_OBJ)
$(BUILD)/%.o: %.c $(BUILD)/flags
	$(call say,CC $<) mkdir -p $(@D) && $(COMPILE) $(FLAGS_$(*F)) -MMD -MP -c $< -o $@

# Checks at start that the processor has the features the other files are compiled for.
$(BUILD)/tost/base/processor.o: private TOST_CFLAGS += -DBUILT_FOR='" $(BUILT_FOR) "'
$(BUILD)/tost/base/processor.o: private override ARCH :=
$(BUILD)/tost/base/processor.o: private override CFLAGS := $(filter-out -march=% -mcpu=%,$(CFLAGS))

# The version in CITATION.cff and the commit, with "+" if files differ from it. Keeps the commit if git cannot read the
# repository, as in `sudo make`; without a repository there is none. The program adds its vector extensions,
# which may change the last bits.
$(BUILD)/version: FORCE
	@mkdir -p $(@D); number=$$(sed -n 's/^version: *//p' CITATION.cff); commit=; \
	if [ -e .git ]; then commit=$$(git rev-parse --short=10 HEAD 2>/dev/null) || { [ ! -s $@ ] || exit 0; }; \
	    [ -z "$$commit" ] || git --no-optional-locks diff --quiet HEAD 2>/dev/null || commit=$$commit+; fi; \
	version="$$number$${commit:+ ($$commit)}"; \
	[ "$$(cat $@ 2>/dev/null)" = "$$version" ] || echo "$$version" > $@
$(BUILD)/tost/base/version.o: $(BUILD)/version
$(BUILD)/tost/base/version.o: private TOST_CFLAGS += -DTOST_VERSION='"$(strip \
    $(shell cat $(BUILD)/version) $(filter AVX512F AVX512BF16 FMA,$(BUILT_FOR)))"'

# Both files change only when the flags do. build/variant relinks the programs when the variant changes.
build/variant: FORCE
	@mkdir -p build; [ "$$(cat $@ 2>/dev/null)" = "$(COMPILE) $(LIBS) $(NCCL_FLAGS)" ] || { \
	    echo "$(COMPILE) $(LIBS) $(NCCL_FLAGS)" > $@; \
	    $(ECHO) "$(SUMMARY)"; }
$(BUILD)/flags: build/variant
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = "$(COMPILE) $(LIB_OBJ)" ] || echo "$(COMPILE) $(LIB_OBJ)" > $@

include dev/cuda.mk dev/test.mk dev/bench.mk dev/install.mk

clean:
	rm -rf build train_gpt_tost train_gpt_tostcu test_tost
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.PHONY: all clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find build -name '*.d' 2>/dev/null)
