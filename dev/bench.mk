# bench.mk: benchmarks of the CPU trainer, described in dev/bench/README.md.

bench_built: $(patsubst %.c,$(BUILD)/%,$(wildcard dev/bench/*.c))
bench: train_gpt_tost $(BUILD)/dev/bench/bench
	@dev/bench/bench.sh $(BUILD)/dev/bench/bench

# With MPI=1: the exchange alone, for dev/bench/distributed.py
exchange_bench: $(BUILD)/dev/bench/exchange_bench
	@cp $< build/exchange_bench

.PHONY: bench bench_built exchange_bench
