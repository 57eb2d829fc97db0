# bench.mk: benchmarks of the CPU trainer, described in dev/bench/README.md.

bench_built: $(patsubst %.c,$(BUILD)/%,$(wildcard dev/bench/*.c))
bench: train_gpt_tost $(BUILD)/dev/bench/bench
	@dev/bench/bench.sh $(BUILD)/dev/bench/bench

.PHONY: bench bench_built
