# bench.mk: benchmarks of the CPU trainer, described in dev/bench/README.md.

bench_built: $(patsubst %.c,$(BUILD)/%,$(wildcard dev/bench/*.c))
# build/bench_openblas is the same benchmark with OpenBLAS; without OpenBLAS it is missing, and the rows say so.
bench: train_gpt_tost $(BUILD)/dev/bench/bench
	@rm -f build/bench_openblas; \
	    $(MAKE) --no-print-directory BLAS=openblas bench_openblas > /dev/null 2>&1 || \
	    echo "skipped: OpenBLAS: not found" >&2
	@dev/bench/bench.sh $(BUILD)/dev/bench/bench build/bench_openblas
bench_openblas: $(BUILD)/dev/bench/bench
	@cp $< build/bench_openblas

# With MPI=1: the exchange alone, for dev/bench/distributed.py
exchange_bench: $(BUILD)/dev/bench/exchange_bench
	@cp $< build/exchange_bench

.PHONY: bench bench_built bench_openblas exchange_bench
