# test.mk: tests, torture tests and fuzzing, described in dev/test/README.md.

TESTS = $(patsubst dev/test/%.c,$(BUILD)/dev/test/%,$(wildcard dev/test/*/test_*.c))

# The emulation comes first because it takes longest to compile.
test_all: $(if $(NO_EMULATION),,$(EMU)/train_gpt_tostcu $(EMU)/test_tost)
test test_all: $(if $(NO_EMULATION),,$(EMU)/test) train_gpt_tost test_tost $(TESTS)
	@$(if $(filter test,$@),QUICK=1) NO_EMULATION="$(NO_EMULATION)" \
	    dev/test/run.sh $(if $(NO_EMULATION),,$(EMU)/test) $(TESTS)

test_tost: $(BUILD)/test_tost.o $(ENGINES:%.c=$(BUILD)/%.o) $(if $(NO_CUDA),,$(CU)/engine.o) \
    $(BUILD)/libtost.a build/variant
	$(call say,LINK $@) $(COMPILE) -o $@ $(filter %.o %.a,$^) $(if $(NO_CUDA),,$(CUDA_LIBS)) $(LIBS)
FLAGS_test_tost = $(if $(NO_CUDA),-DTOST_NO_CUDA='"$(NO_CUDA)"')
$(BUILD)/test_tost.o: $(BUILD)/cuda
$(BUILD)/cuda: FORCE   # changes if NO_CUDA does
	@mkdir -p $(@D) && { [ "$$(cat $@ 2>/dev/null)" = "$(NO_CUDA)" ] && [ -e $@ ] || echo "$(NO_CUDA)" > $@; }
$(BUILD)/dev/%: $(BUILD)/dev/%.o $(BUILD)/libtost.a
	$(call say,LINK $@) $(COMPILE) -o $@ $^ $(LIBS)

$(BUILD)/dev/test/unit/%.o: private CFLAGS += -O1   # compiles in half the time

# The reference test for aarch64 on any machine: with a cross-compiler, under qemu's user-mode emulation.
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64    ?= OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive qemu-aarch64 -L /usr/aarch64-linux-gnu
test_aarch64:
	@$(MAKE) --no-print-directory CC=$(AARCH64_CC) ARCH= CUDA=0 test_tost
	QUICK=1 $(AARCH64) ./test_tost --golden dev/test/golden

# ---- torture tests: kills, full disks, power loss and leaks ----------------------------------------------------
# TORTURE_FLAGS="--suites kill,power --seed 3" selects suites and the seed. The build for valgrind omits -march=native,
# since valgrind does not support all instructions.
TORTURE    = build/torture
KILLS     ?= 100
EVERY     ?= 1
PLAIN      = -std=c11 -D_GNU_SOURCE -I. -Itost -O1 -g -ffp-contract=off -Wno-unknown-pragmas -Wno-pass-failed
PLAIN_SRC  = $(wildcard tost/*.c tost/*/*.c tost/*.h tost/*/*.h)

$(TORTURE)/faults.so: dev/test/faults/faults.c
	$(call say,CC $<) mkdir -p $(@D) && $(CC) -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -shared -fPIC -o $@ $< -ldl
$(TORTURE)/valgrind: train_gpt_tost.c $(PLAIN_SRC)
	$(call say,CC $@) mkdir -p $(@D) && $(CC) $(PLAIN) -o $@ $(filter %.c,$^) -lm

torture: train_gpt_tost $(TORTURE)/faults.so $(TORTURE)/valgrind
	@$(or $(PYTHON),python3) dev/test/faults/torture.py --binary ./train_gpt_tost --built $(TORTURE) --kills $(KILLS) \
	    --every $(EVERY) $(TORTURE_FLAGS)
torture_short:
	@$(MAKE) --no-print-directory torture KILLS=12 EVERY=24

# ---- fuzzing: libFuzzer on readers of files, for FUZZ_SECONDS or FUZZ_RUNS inputs; FUZZ selects readers --------------
FUZZ_DIR      = build/fuzz
FUZZ_CC      ?= clang
FUZZ_SECONDS ?= 20
FUZZ_RUNS    ?= -1
FUZZ         ?= $(patsubst dev/test/faults/fuzz/fuzz_%.c,%,$(wildcard dev/test/faults/fuzz/fuzz_*.c))
FUZZ_FLAGS    = -std=c11 -D_GNU_SOURCE -I. -Itost -O1 -g -Wall -Wextra -Wno-unknown-pragmas -Wno-pass-failed \
                -DTOST_SANITIZE -DTOST_NO_MAIN $(SANITIZERS) -fno-omit-frame-pointer
FUZZ_OBJ      = $(patsubst %.c,$(FUZZ_DIR)/%.o,train_gpt_tost.c $(wildcard tost/*.c tost/*/*.c))

$(FUZZ_DIR)/%.o: %.c
	$(call say,CC $<) mkdir -p $(@D) && $(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c $< -o $@
$(FUZZ_DIR)/fuzz_%: $(FUZZ_DIR)/dev/test/faults/fuzz/fuzz_%.o $(FUZZ_OBJ)
	$(call say,LINK $@) $(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ -lm
fuzz_built: $(patsubst %,$(FUZZ_DIR)/fuzz_%,$(FUZZ))
fuzz: train_gpt_tost
	@FUZZ_CC="$(FUZZ_CC)" MAKE="$(MAKE)" dev/test/faults/fuzz/run.sh $(FUZZ_DIR) $(FUZZ_SECONDS) $(FUZZ_RUNS) $(FUZZ)

.PHONY: test test_all test_aarch64 torture torture_short fuzz fuzz_built
