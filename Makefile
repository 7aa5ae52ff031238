# Thin: the work is in cargo, build.rs and third_party/fetch.sh. Everything for the recipes comes from `fetch.sh --env`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The architectures of `make gpu-bundle`, such as ARCHS="sm80 sm90". BUNDLE="kernels candle-0.9" adds the GPU tests and the examples moe and quantized
# with candle's own kernels replaced by ours, and a program on candle 0.9.2. BUNDLE=nccl is for several GPUs (third_party/fetch.sh nccl).
ARCHS := sm90
BUNDLE :=
comma := ,
# The features of the package in preload/.
PRELOAD_FEATURES = $(subst $() ,$(comma),$(strip $(ARCHS) cutile))
FEATURES_OF = cuda,$(shell echo $(1) | tr ' ' ,),full
FEATURES := $(call FEATURES_OF,sm90)
ENV := eval "$$(third_party/fetch.sh --env)"; \
  export CUDA_COMPUTE_CAP=$${CUDA_COMPUTE_CAP:-90} CANDLE_TESTS="$$(scripts/candle_tests.sh)" \
  TILEGEMM_OBJECTS="$${TILEGEMM_OBJECTS:-$$PWD/target/kernels}" TILEGEMM_GIT="$$(git describe --always --dirty 2>/dev/null || echo unknown)";

.PHONY: help demo test fmt bench tune preload gpu-bundle toolchain
help:
	@echo "make demo        real models embed sentences and answer a question, on the GPU if there is one"
	@echo "make test        everything that can be checked on this machine; no GPU needed"
	@echo "make bench       the benchmark suite (needs a GPU); make bench ARGS='--help' lists what it can do"
	@echo "make tune        a measured table for this GPU; make tune ARGS='--help' lists what it can do"
	@echo "make preload     libtilegemm_preload.so for programs that are already built; ARCHS='sm80 sm90' for several archs"
	@echo "make gpu-bundle  pack the binaries for a GPU host without Rust into gpu-bundle.tar.xz; ARCHS='sm80 sm90' for several archs"
	@echo "make fmt         format the sources"

demo:
	scripts/demo.sh

test:
	scripts/test.sh "$(FEATURES)"

toolchain:
	third_party/fetch.sh

bench: toolchain
	$(ENV) cargo run --locked -p tilegemm --features $(FEATURES),bench,layout -- bench $(ARGS)

tune: toolchain
	$(ENV) cargo run --locked -p tilegemm --features $(FEATURES),bench,layout -- tune $(ARGS)

preload: toolchain
	$(ENV) cargo build --locked -p candle-tilegemm-preload --features "$(PRELOAD_FEATURES)"
	@ls -l target/debug/libtilegemm_preload.so

gpu-bundle: toolchain
	$(ENV) scripts/gpu_bundle.sh "$(call FEATURES_OF,$(ARCHS))" $(BUNDLE)

fmt:
	cargo fmt --all
	third_party/fetch.sh clang-format
	scripts/format_csrc.sh -i
