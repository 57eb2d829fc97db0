# bench.mk: benchmarks of the CPU trainer, described in dev/bench/README.md.

bench_built: $(patsubst %.c,$(BUILD)/%,$(wildcard dev/bench/*.c))
# bench_builtin is the same benchmark with the built-in matrix product.
bench: train_gpt_tost $(BUILD)/dev/bench/bench
	@$(MAKE) --no-print-directory BLAS=0 bench_builtin > /dev/null
	@dev/bench/bench.sh $(BUILD)/dev/bench/bench build/bench_builtin
bench_builtin: $(BUILD)/dev/bench/bench
	@cp $< build/bench_builtin

.PHONY: bench bench_built bench_builtin
