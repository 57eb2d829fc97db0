# cuda.mk: the CUDA trainer, the CUDA emulation on the CPU with its mutation test, and the CUDA benchmarks.

NVCC      ?= nvcc
OBJCOPY   ?= objcopy
CUDA      ?= 1
EMULATION ?= 1

# ---- CUDA trainer -------------------------------------------------------------------------------------------------
# One binary for all GPUs since Ampere that nvcc supports: machine code for common architectures and the newest one, PTX
# for the others. The output of ptxas (registers, spills) is saved next to the object file.
KNOWN      = $(shell $(NVCC) --list-gpu-arch | sed -n 's/^compute_//p' | sort -n)
GENCODE    = $(foreach arch,$(sort $(filter 80 90 100 120,$(KNOWN)) $(lastword $(KNOWN))),\
                 -gencode arch=compute_$(arch),code=sm_$(arch)) -gencode arch=compute_90,code=compute_90
ARCHS      = $(or $(filter-out 0,$(words $(filter -gencode,$(GENCODE)))),1)
# NCCL=1: several ranks, with the NCCL of the toolkit, or that of NCCL_HOME
NCCL      ?= 0
WITH_NCCL := $(if $(filter-out clean help,$(or $(MAKECMDGOALS),all)),$(filter-out 0,$(NCCL)))
ifneq ($(filter train_gpt_tostcu bench_cuda,$(MAKECMDGOALS))$(WITH_NCCL),)
  ifeq ($(shell command -v $(NVCC) 2>/dev/null),)
    $(error $(NVCC) is not found: install the CUDA toolkit, or set NVCC to the path of its nvcc)
  endif
endif
ifneq ($(WITH_NCCL),)
  NCCL_FLAGS := -DTOST_NCCL $(if $(NCCL_HOME),-I$(NCCL_HOME)/include)
  ifeq ($(shell echo '\043include <nccl.h>' | $(NVCC) $(NCCL_FLAGS) -x cu -E - > /dev/null 2>&1 && echo yes),)
    $(error NCCL=$(NCCL): $(NVCC) finds no <nccl.h>; install NCCL (libnccl-dev), or set NCCL_HOME to its folder)
  endif
  NCCL_DIRS   = $(addsuffix /lib,$(abspath $(NCCL_HOME)))
endif
CU         = build/cuda$(if $(NCCL_FLAGS),-nccl)
CUDA_FLAGS = $(NCCL_FLAGS) --threads 0 -O3 -std=c++17 -I. -Itost -Xcompiler -Wall,-Wextra \
             $(if $(filter-out 0,$(WERROR)),-Werror all-warnings)
# -L for the library folders of NCCL and of the toolkit, and an rpath for all but the stubs
CUDA_DIRS  = $(eval CUDA_DIRS := $(NCCL_DIRS) $(abspath $(patsubst "-L%",%,$(shell \
                 $(NVCC) --dryrun -c -x cu /dev/null -o /dev/null 2>&1 | sed -n 's/.*LIBRARIES= *//p'))))$(CUDA_DIRS)
# $(call library,NAME): the flag for a library in CUDA_DIRS, where packages of pip have only lib*.so.VERSION
library    = $(or $(if $(wildcard $(CUDA_DIRS:%=%/lib$(1).so)),-l$(1)),$(addprefix -l:,$(notdir $(firstword \
                 $(wildcard $(CUDA_DIRS:%=%/lib$(1).so.*))))),-l$(1))
CUDA_LIBS  = $(addprefix -L,$(CUDA_DIRS)) $(addprefix -Wl$(comma)-rpath$(comma),$(filter-out %/stubs,$(CUDA_DIRS))) \
             $(if $(NCCL_FLAGS),$(call library,nccl)) $(call library,cublasLt) -lcudart_static -lstdc++ -ldl -lrt \
             -lpthread

CUDA_H     = $(wildcard tost/*.h tost/*/*.h tost/cuda/*.cuh)

train_gpt_tostcu: $(CU)/train_gpt_tost.o $(BUILD)/libtost.a build/variant
	$(call say,LINK $@) $(COMPILE) -o $@ $(filter %.o %.a,$^) $(CUDA_LIBS) $(LIBS)
	@$(ECHO) "$@ uses" $$(ldd $@ | sed -n 's/^.*\(lib\(cublasLt\|nccl\)\.so.* =>\) \(.*\) (.*/\3/p; /not found/p')
$(CU)/train_gpt_tost.o: train_gpt_tost.cu $(CUDA_H) $(CU)/gencode
	$(call say,NVCC $< (architectures: $(ARCHS); a minute or more)) mkdir -p $(@D) && \
	    { $(NVCC) $(CUDA_FLAGS) $(GENCODE) -Xptxas -v -c $< -o $@ 2> $@.ptxas || { cat $@.ptxas; exit 1; }; }
# Written only if GENCODE has changed.
$(CU)/gencode: FORCE
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = "$(strip $(GENCODE))" ] || echo "$(strip $(GENCODE))" > $@
# The engine for test_tost: the same object file without main.
$(CU)/engine.o: $(CU)/train_gpt_tost.o
	@$(OBJCOPY) --keep-global-symbol=tost_cuda_engine $< $@

# NO_CUDA: why test_tost is built without the CUDA engine, which takes minutes to compile; empty if it is included.
ifneq ($(filter test test_all test_tost,$(MAKECMDGOALS)),)
  ifeq ($(CUDA),0)
    NO_CUDA := left out by CUDA=0
  else ifneq ($(SANITIZE),0)
    NO_CUDA := left out of a build with the sanitizers
  else ifeq ($(and $(shell command -v $(NVCC)),$(shell command -v $(OBJCOPY))),)
    NO_CUDA := built without nvcc
  else ifneq ($(CUDA),always)
    ifeq ($(shell { [ -e build/cuda/probe ] || { mkdir -p build/cuda && cd build/cuda && \
        printf '\043include <cublasLt.h>\nint main() { int n; return !cublasLtGetVersion() || %s; }\n' \
            'cudaGetDeviceCount(&n)' > probe.cu && $(NVCC) -arch=native -o probe.o -c probe.cu && \
        $(CC) -o probe probe.o $(CUDA_LIBS) && \
        ./probe || { rm -f probe; false; }; }; } > /dev/null 2>&1 && echo yes),)
      NO_CUDA := built without CUDA: no GPU, or nvcc cannot link a program with cuBLASLt
    endif
  endif
endif

# ---- CUDA emulation -----------------------------------------------------------------------------------------------
# The kernels, compiled for the CPU; needs neither a GPU nor nvcc. With SANITIZE=1, they run three times as long, and
# accesses outside of device memory are found, too; -O1 and -fno-sanitize shorten the compilation.
EMU       = build/cuda_on_host$(if $(filter-out 0,$(SANITIZE)),-sanitize)
EMU_CXX  := $(CXX) -std=c++17
EMU_CHECKS = -g1 $(SANITIZERS) -fno-sanitize=null,object-size,vptr -DTOST_SANITIZE
EMU_SANITIZE = $(if $(filter-out 0,$(SANITIZE)),$(EMU_CHECKS))
EMU_LEVEL = $(if $(EMU_SANITIZE),-O1,-O2)
EMU_FLAGS = $(EMU_SANITIZE) -Wall -Wextra -Wno-unknown-pragmas -Wno-maybe-uninitialized -Wno-unknown-warning-option \
            -I. -Itost
# For the race detector: the compiler reports loads and stores to races.cpp, and the library of the thread sanitizer is
# not linked. -w: the other builds show the warnings.
EMU_RACES =
EMU_CUDA  = -DTOST_CUDA_ON_HOST -DTOST_NCCL -Idev/test/cuda
# Modules of test_tost and of the emulation tests; the modules that these and the engine need; all of them
ENGINES   = dev/test/engine/engines.c dev/test/engine/golden.c
EMU_ENGINES = $(ENGINES:%.c=$(EMU)/%.o)
EMU_C     = $(EMU_ENGINES) $(patsubst %,$(EMU)/%.o,dev/test/cuda/cpu_layers $(patsubst %,tost/%,flops init model \
              chunks schedule base/crc32 base/files base/folder base/json base/memory base/processor base/rng \
              base/say base/signals base/terminal base/text cpu/conv cpu/delta_rule cpu/gemm cpu/threads ranks/comm \
              ranks/exchange ranks/slices store/safetensors))
EMU_TOST  = $(patsubst %.c,$(EMU)/%.o,$(wildcard tost/*.c tost/*/*.c))
EMU_LIB   = $(patsubst %,$(EMU)/dev/test/cuda/%.o,cuda_on_host cublaslt_on_host nccl_on_host runtime_on_host races)
EMU_MAIN  = $(EMU)/dev/test/cuda/program.o
EMU_CPP   = $(filter-out $(EMU_MAIN),$(patsubst %.cpp,$(EMU)/%.o,$(wildcard dev/test/cuda/*.cpp)))

# NO_EMULATION: why the tests skip the emulation; empty if they run it
ifneq ($(filter test test_all,$(MAKECMDGOALS)),)
  ifeq ($(EMULATION),0)
    NO_EMULATION := left out by EMULATION=0
  else ifeq ($(shell echo 'int main() { }' | $(EMU_CXX) -x c++ - -o /dev/null $(EMU_SANITIZE) 2>/dev/null && echo yes),)
    NO_EMULATION := no C++17 compiler: $(EMU_CXX) $(EMU_SANITIZE)
  endif
endif

$(sort $(EMU_C) $(EMU_TOST)): $(EMU)/%.o: %.c
	$(call say,CC $< (for the emulation)) mkdir -p $(@D) && \
	    $(CC) -std=c11 -D_GNU_SOURCE -DTOST_NO_MAIN -O2 $(EMU_FLAGS) -MMD -MP -c $< -o $@
$(EMU_CPP) $(EMU_MAIN): $(EMU)/%.o: %.cpp
	$(call say,CXX $<) mkdir -p $(@D) && $(EMU_CXX) $(EMU_LEVEL) $(EMU_FLAGS) $(EMU_CUDA) -MMD -MP -c $< -o $@
$(EMU)/dev/test/cuda/kernels_test.o $(EMU)/dev/test/cuda/emulation_test.o: EMU_FLAGS += $(EMU_RACES)
$(EMU)/test: $(EMU_CPP) $(EMU_C)
	$(call say,LINK $@) $(EMU_CXX) $(EMU_FLAGS) -o $@ $^ -lm -ldl -rdynamic

# The whole program, for tests of several ranks
$(EMU)/tost/base/processor.o: private EMU_FLAGS += -DBUILT_FOR='""'
$(EMU)/engine.o: train_gpt_tost.cu $(CUDA_H) $(wildcard dev/test/cuda/*.h)
	$(call say,CXX $< (for the emulation)) mkdir -p $(@D) && \
	    $(EMU_CXX) $(EMU_LEVEL) $(EMU_FLAGS) $(EMU_CUDA) -DTOST_NO_MAIN -x c++ -c $< -o $@
$(EMU)/train_gpt_tostcu: $(EMU_MAIN) $(EMU)/engine.o $(EMU_LIB) $(EMU_TOST)
	$(call say,LINK $@) $(EMU_CXX) $(EMU_FLAGS) -o $@ $^ -lm -ldl -rdynamic

# The reference test with the emulated engine: test_tost --cuda PART
$(EMU)/test_tost.o: test_tost.c
	$(call say,CC $< (for the emulation)) $(CC) -std=c11 -D_GNU_SOURCE -O2 $(EMU_FLAGS) -MMD -MP -c $< -o $@
$(EMU)/test_tost: $(EMU)/test_tost.o $(EMU_ENGINES) $(EMU)/engine.o $(EMU_LIB) $(EMU_TOST)
	$(call say,LINK $@) $(EMU_CXX) $(EMU_FLAGS) -o $@ $^ -lm -ldl

test_cuda_on_host: $(EMU)/test
	$(EMU)/test
# Mutation test: changes single lines of the kernels and checks that the emulation tests fail. MUTANTS="NAME ..."
# selects mutants.
test_mutants:
	@$(MAKE) --no-print-directory EMU=build/mutants SANITIZE=0 \
	    EMU_RACES="-fsanitize=thread -w -DCUDA_ON_HOST_RACES" mutants
mutants: $(EMU_CPP) $(EMU_C)
	@dev/test/cuda/mutants.sh "$(EMU_CXX)" "-O1 $(EMU_FLAGS) $(EMU_RACES) $(EMU_CUDA)" \
	    "$(filter-out %/kernels_test.o,$(EMU_CPP) $(EMU_C))" $(MUTANTS)

# ---- benchmarks of the kernel families, for the GPU of this machine ------------------------------------------------
BENCH_ARCH ?= native
bench_cuda: $(patsubst dev/cuda/%.cu,build/cuda/%,$(wildcard dev/cuda/bench_*.cu))
build/cuda/bench_%.o: dev/cuda/bench_%.cu dev/cuda/bench.cuh train_gpt_tost.cu $(CUDA_H)
	$(call say,NVCC $<) mkdir -p $(@D) && $(NVCC) $(CUDA_FLAGS) -arch=$(BENCH_ARCH) -c $< -o $@
build/cuda/bench_%: build/cuda/bench_%.o $(BUILD)/libtost.a
	$(call say,LINK $@) $(COMPILE) -o $@ $^ $(CUDA_LIBS) $(LIBS)

.PHONY: test_cuda_on_host test_mutants mutants bench_cuda
