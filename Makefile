PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install demo test check format lint types fast learning learning-minecraft learning-text bench clean

help:               ## what each word does
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (about a minute the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "quintain needs Python 3.11 or newer; run: make PYTHON=python3.11 install"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[atari,box2d,dev,export,minigrid,ray,tensorboard,text,video,wandb]'
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

TORCHRL := .cache/torchrl
$(TORCHRL)/installed: pyproject.toml constraints.txt
	@echo "installing TorchRL and quintain into $(TORCHRL) (about a minute the first time) ..."
	@$(PYTHON) -m venv $(TORCHRL)
	@$(TORCHRL)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . pytest pytest-timeout
	@$(TORCHRL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchrl==0.14.1 cloudpickle  # asks for tensordict < 0.15, works with ours
	@touch $@

.PHONY: test-torchrl
test-torchrl: $(TORCHRL)/installed    ## losses of TorchRL in our loop, in an environment of its own, for minutes; writes docs/results/
	@OMP_NUM_THREADS=1 $(TORCHRL)/bin/python -m pytest tests/torchrl

.PHONY: bench-team-collection
bench-team-collection: $(TORCHRL)/installed    ## collection of a scenario beside TorchRL's own collector, for a minute; writes docs/results/
	@OMP_NUM_THREADS=1 $(TORCHRL)/bin/python bench/team_collection.py

.PHONY: test-collectors
test-collectors: install    ## every number of collectors in every placement, killed and not, for minutes; writes docs/results/
	@$(BIN)/python -m tests.placements.collector_cells

.PHONY: test-ray
test-ray: install    ## runs on Ray that are killed, stopped and interrupted, for minutes; writes docs/results/
	@failed=0; for cells in ray_cells ray_rank_cells ray_gpu_cells ray_online_cells ray_cluster_cells; do \
		$(BIN)/python -m tests.placements.$$cells || failed=1; done; exit $$failed

learning-minecraft: install   ## look and recall in Minecraft's stand-in, 3 seeds each; writes docs/results/
	@$(BIN)/python -m pytest -m learning -k minecraft

learning-text: install   ## expert iteration with small text models, 3 seeds and a control; writes docs/results/
	@$(BIN)/python bench/learning_text.py

.PHONY: learning-teams
learning-teams: install   ## provers and verifiers of find_the_plus, 3 seeds of each kind; writes docs/results/
	@$(BIN)/python bench/learning_teams.py

.PHONY: text-faults
text-faults: install   ## kills and faults of text runs, for minutes; writes docs/results/
	@PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python bench/text_faults.py

learning: install   ## train to a score over several seeds; writes docs/results/
	@$(BIN)/python -m pytest -m learning

bench: install      ## speed beside other libraries, for hours; writes docs/results/
	@$(BIN)/python bench/run.py

.PHONY: bench-ray
bench-ray: install    ## what Ray costs beside Ray alone and beside processes, for ten minutes; writes docs/results/
	@$(BIN)/python bench/ray_speed.py
	@$(BIN)/python bench/ray_readers.py
	@$(BIN)/python bench/cluster_needs.py

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

.PHONY: soak
soak: install    ## 256 lanes that break all the time, for MINUTES=60; writes docs/results/
	@PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python bench/soak.py --minutes $(or $(MINUTES),60)

.PHONY: bench-online-start
bench-online-start: install    ## the first update by MineStudio's names beside quintain train, for minutes; writes docs/results/
	@OMP_NUM_THREADS=1 $(BIN)/python bench/online_start.py

.PHONY: bench-old-and-new
bench-old-and-new: install    ## an older commit (OLD=...) beside this one, without peers; writes docs/results/
	@$(BIN)/python bench/old_and_new.py $(OLD)

clean:              ## remove what make made
	@rm -rf $(VENV) $(TORCHRL) .mypy_cache .ruff_cache .pytest_cache .hypothesis
