PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install demo test check format lint types fast learning bench clean

help:               ## what each word does
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (about a minute the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "quintain needs Python 3.11 or newer; run: make PYTHON=python3.11 install"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[atari,box2d,dev,export,minigrid,tensorboard,video,wandb]'
	@touch $@

install: $(VENV)/installed    ## create .venv and install everything into it

demo: install       ## train PPO on CartPole until solved, and evaluate it
	@$(BIN)/quintain train examples/cartpole.yaml
	@$(BIN)/quintain eval latest --episodes 100

test: install       ## the whole test suite (what .ci/run runs)
	@$(BIN)/python -m pytest -m 'not learning' -n 3 --dist worksteal

check: install      ## format, lint, types and fast tests, side by side
	@$(MAKE) --no-print-directory --jobs=3 format-check lint types fast

format: install     ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet .

.PHONY: format-check
format-check: install
	@$(BIN)/ruff format --check --quiet .

lint: install       ## find mistakes without running anything
	@$(BIN)/ruff check --quiet .

types: install      ## strict types
	@$(BIN)/mypy

fast: install       ## the tests that take seconds
	@$(BIN)/python -m pytest -n 2

.PHONY: test-collectors
test-collectors: install    ## every number of collectors in every placement, killed and not, for minutes; writes docs/results/
	@$(BIN)/python -m tests.placements.collector_cells

learning: install   ## train to a score over several seeds; writes docs/results/
	@$(BIN)/python -m pytest -m learning

bench: install      ## speed beside other libraries, for hours; writes docs/results/
	@$(BIN)/python bench/run.py

.PHONY: bench-quoted
bench-quoted: install    ## only the rows that the README quotes, for half an hour; writes docs/results/ and the README
	@$(BIN)/python bench/run.py --quoted

.PHONY: bench-learning
bench-learning: install    ## learning beside Stable-Baselines3, the runs that are missing, for hours; writes docs/results/
	@$(BIN)/python bench/learning.py --jobs 2

.PHONY: bench-defaults
bench-defaults: install    ## PPO by its defaults beside Stable-Baselines3 by its own, the runs that are missing, for hours; writes docs/results/
	@$(BIN)/python bench/learning.py --defaults --jobs 2

.PHONY: bench-tuned
bench-tuned: install    ## the tuned settings that ship, the runs that are missing; writes docs/results/ and scores
	@$(BIN)/python bench/tuned.py

.PHONY: bench-agents
bench-agents: install    ## agents that come and go beside ML-Agents, for minutes; writes docs/results/
	@$(BIN)/python bench/agents.py

.PHONY: bench-images
bench-images: install    ## small images beside ML-Agents and bare torch, for minutes; writes docs/results/
	@$(BIN)/python bench/images.py

.PHONY: bench-off-policy
bench-off-policy: install    ## DQN and TD3 beside Stable-Baselines3, learning and speed, for an hour; writes docs/results/
	@$(BIN)/python bench/off_policy.py

.PHONY: bench-fragments
bench-fragments: install    ## lanes that do not wait beside lanes in lockstep, for minutes; writes docs/results/
	@$(BIN)/python bench/fragments.py

.PHONY: bench-old-and-new
bench-old-and-new: install    ## an older commit (OLD=...) beside this one, without peers; writes docs/results/
	@$(BIN)/python bench/old_and_new.py $(OLD)

clean:              ## remove what make made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
