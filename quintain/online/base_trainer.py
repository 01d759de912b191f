"""`BaseTrainer`: a user's `train()` asks for fragments and broadcasts weights; the run logs, saves and resumes it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from quintain.algorithms.minibatches import moved
from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.data.spec import build, flatten
from quintain.errors import HostedError, SettingsError
from quintain.online.config import refuse_impossible
from quintain.online.fragments import (
    FragmentDataDict,
    FragmentRecord,
    SampleFragment,
    data_iter,
    mapped,
    sample_fragments,
)
from quintain.online.gae_worker import GAEInfo, GAEWorker
from quintain.online.ray_actors import as_actor, ask, is_actor, own_actor
from quintain.online.rollout_manager import ManagerFacts, RolloutManager, facts_of
from quintain.online.runner import RayPlace, train_online
from quintain.online.settings import LearnerConfig, TrainConfig
from quintain.online.translate import Generators
from quintain.policies.mine_adapter import MinePolicyAdapter
from quintain.policies.mine_policy import ewma_moments
from quintain.trainers.hosted import SHARED
from quintain.trainers.hosted_trainer import HostedTrainer

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.policies.mine_policy import MinePolicy
    from quintain.services.reporting.writers import RunSummary
    from quintain.typing import Keyword, Keywords, Saved, Tree

_USUAL = LearnerConfig()
_KEPT = (*SHARED, torch.Generator, np.random.Generator)
"""Objects that are saved by themselves if they are attributes of a trainer; dataclasses are, too."""


class BaseTrainer(ABC):
    """The base of online trainers with a loop of their own.

    `fit` runs `train` in a run directory. A broadcast of a new version ends an iteration: it is counted, logged and
    saved there, and a stop happens there. A resumed run makes the trainer again, restores what
    `setup_model_and_optimizer` returned, and all modules, optimizers, schedulers, generators and dataclasses among its
    attributes, and calls `train`.

    With `num_workers` of 2 or more each rank has a trainer and calls `train`, over its share of the fragments. Models
    begin with the weights of rank 0, and each backward pass averages the gradients of all ranks.
    """

    has_own_loop: ClassVar[bool] = True
    """Whether `train` is the loop; the trainers that ship are run by the core's."""

    def __init__(
        self,
        *,
        rollout_manager: RolloutManager | Saved,
        policy_generator: Callable[[], MinePolicy],
        env_generator: Callable[[], GymEnv],
        num_workers: int = _USUAL.num_workers,
        num_readers: int = _USUAL.num_readers,
        num_cpus_per_reader: float = _USUAL.num_cpus_per_reader,
        num_gpus_per_worker: float = _USUAL.num_gpus_per_worker,
        prefetch_batches: int = _USUAL.prefetch_batches,
        discount: float = _USUAL.discount,
        gae_lambda: float = _USUAL.gae_lambda,
        context_length: int = _USUAL.context_length,
        use_normalized_vf: bool = _USUAL.use_normalized_vf,
        inference_batch_size_per_gpu: int | None = None,
        resume: str | None = None,
        resume_optimizer: bool = True,
        **kwargs: Keyword,
    ) -> None:
        self.rollout_manager = rollout_manager
        self.policy_generator = policy_generator
        self.env_generator = env_generator
        self.whole_config = kwargs.pop("whole_config", None)
        known = {*TrainConfig.model_fields}
        for name in kwargs.keys() - known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "take it in the constructor of your trainer"
            raise SettingsError(f"{type(self).__name__} got the unknown parameter {name}; {hint}", code="E0266")
        self.config = TrainConfig(
            num_workers=num_workers,
            num_readers=num_readers,
            num_cpus_per_reader=num_cpus_per_reader,
            num_gpus_per_worker=num_gpus_per_worker,
            prefetch_batches=prefetch_batches,
            discount=discount,
            gae_lambda=gae_lambda,
            context_length=context_length,
            use_normalized_vf=use_normalized_vf,
            inference_batch_size_per_gpu=inference_batch_size_per_gpu,
            resume=resume,
            resume_optimizer=resume_optimizer,
            **kwargs,
        )
        for name, value in self.config:
            setattr(self, name, value)
        self._manager: ManagerFacts = facts_of(rollout_manager)
        make = partial(as_actor, GAEWorker) if is_actor(rollout_manager) else GAEWorker
        self.gae_actor: Saved = make(discount, gae_lambda)
        self.rank = 0
        self.loader_pool: dict[str, SampleFragment] = {}
        """The fragments of the last fetch, by the keys of their records."""
        self._hosts: list[HostedTrainer] = []
        self._blocks: list[FragmentBlock] = []
        """The block of the last fetch."""
        self._kept: set[str] = set()
        self._num_counted = 0
        """`num_updates` as `train` counts it, at most one ahead of the run: before a broadcast, say."""

    # -- for users to write ----------------------------------------------------------------------------------------

    @abstractmethod
    def setup_model_and_optimizer(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Returns model and optimizer, and a scaler as a third if there is one; may take the policy generator."""

    @abstractmethod
    def train(self) -> None:
        """Trains: fetches fragments, updates the model, broadcasts it, again and again."""

    # -- for users to call -----------------------------------------------------------------------------------------

    def fit(self) -> RunSummary:
        """Runs the training to its end, or until it is stopped; on Ray by `TorchTrainer`, also with one worker."""
        name = f"{type(self).__module__}:{type(self).__qualname__}"
        trainer = {"type": "hosted", "function": name} if self.has_own_loop else None
        function = self._train_in if self.has_own_loop else None
        manager, generators = self._manager, Generators(self.policy_generator, self.env_generator)
        config = manager.config.model_copy(update={"trainer_name": type(self).__name__, "train_config": self.config})
        refuse_impossible(config, is_hosted=self.has_own_loop)
        place = None if manager.address is None else RayPlace(manager.address, is_under_train=True)
        return train_online(config, generators, trainer=trainer, function=function, idle=manager.idle_keys, place=place)

    def fetch_fragments_and_estimate_advantages(self, num_fragments: int) -> dict[str, Tree]:
        """Waits for fragments and returns them with advantages, targets and what the current weights say of them.

        Of `num_fragments`, each of several ranks gets an equal share.
        `records` are (index, key) pairs for `data_iter`; `rewards`, `td_targets`, `advantages`, `old_logps`,
        `old_pi_logits` and `old_vpreds` are by index. `old_vpreds` are as the value head says them, targets in the
        scale of rewards. `behavior_logps` are log-probabilities of the versions that acted.
        """
        host = self.host
        self._keep_parts()
        block = host.collect(num_fragments).rollout
        assert isinstance(block, FragmentBlock)
        self._blocks = [block]
        fragments = sample_fragments(block)
        indexes = [each.index for each in fragments]
        self.loader_pool = {f"{each.worker_uuid}/{each.fid_in_worker}": each for each in fragments}
        steps = {name: block.array(name) for name in (f.VALUE, f.FINAL_VALUE, f.LOG_PROB)}
        ask(self.gae_actor, "reset")
        ask(
            self.gae_actor,
            "update_gae_infos",
            {
                each.index: GAEInfo(
                    each.reward, each.terminated, each.truncated, steps[f.VALUE][:, each.column],
                    steps[f.FINAL_VALUE][:-1, each.column], each.valid, each.follows,
                )
                for each in fragments
            },
        )  # fmt: skip
        ask(self.gae_actor, "calculate_target")
        targets = dict(zip(indexes, ask(self.gae_actor, "get_target", indexes), strict=True))
        logits, log_probs, values = self._judge(block)
        rewards = FragmentDataDict({each.index: float(each.reward.sum()) for each in fragments})
        self.log({"buffer_reward": sum(rewards.values()) / len(rewards),
                  "average_gae_length": ask(self.gae_actor, "get_average_gae_length")})  # fmt: skip
        column = {each.index: each.column for each in fragments}
        return {
            "records": [FragmentRecord(index, key) for index, key in zip(indexes, self.loader_pool, strict=True)],
            "rewards": rewards,
            "td_targets": FragmentDataDict({i: torch.tensor(targets[i][0]) for i in indexes}),
            "advantages": FragmentDataDict({i: torch.tensor(targets[i][1]) for i in indexes}),
            "old_logps": FragmentDataDict({i: log_probs[:, column[i]] for i in indexes}),
            "old_pi_logits": FragmentDataDict(
                {i: mapped(partial(torch.select, dim=1, index=column[i]), logits) for i in indexes}
            ),
            "old_vpreds": FragmentDataDict({i: values[:, column[i]] for i in indexes}),
            "behavior_logps": FragmentDataDict(
                {i: torch.from_numpy(steps[f.LOG_PROB][:-1, column[i]].copy()) for i in indexes}
            ),
        }

    def broadcast_model_to_rollout_workers(self, new_version: bool) -> None:
        """Gives the model's weights to all rollout workers; a new version ends the iteration.

        All ranks may call it, or rank 0 alone.
        """
        _copy_weights(self.inner_model, self._policy.network)
        self.host.publish(is_new=new_version)

    def data_iter(self, records: list[FragmentRecord], batch_size: int | None = None) -> Tree:
        """Yields the fragments of records in batches of `batch_size_per_gpu`, or of any size."""
        return data_iter(self.loader_pool, records, batch_size or self.config.batch_size_per_gpu)

    def evaluate_fragments(self, fragments: list[SampleFragment]) -> tuple[Tree, torch.Tensor, torch.Tensor]:
        """Returns `pi_logits`, log-probabilities [B, T] and `vpred` [B, T] of the model, with gradients.

        Each episode in a fragment begins with the initial hidden state, whatever the module makes of `first`. All
        fragments must be of the last fetch.
        """
        columns = torch.tensor([each.column for each in fragments])
        logits, log_probs, values = self._replay(self._blocks[-1], columns)
        logits = mapped(lambda leaf: leaf.transpose(0, 1), logits)
        return logits, log_probs.transpose(0, 1), values.transpose(0, 1)

    def log(self, metrics: Mapping[str, float | torch.Tensor]) -> None:
        """Adds metrics to the row of this iteration; of several ranks it has the mean."""
        self.host.log(metrics)

    def no_sync(self) -> AbstractContextManager[None]:
        """Lets backward passes inside accumulate on this rank alone; the next one outside averages over all ranks."""
        return self.host.modules.no_sync()

    # -- attributes of MineStudio's trainers -----------------------------------------------------------------------

    @property
    def host(self) -> HostedTrainer:
        """The loop that hosts `train`; there is one while it runs."""
        if not self._hosts:
            raise SettingsError(f"{type(self).__name__} has no run yet; call fit()", code="E0268")
        return self._hosts[-1]

    @property
    def num_updates(self) -> int:
        """How many iterations are done; a resumed `train` goes on there."""
        return max(self.host.iteration, self._num_counted)

    @num_updates.setter
    def num_updates(self, value: int) -> None:
        now = self.host.iteration
        # A loop may count for itself, as long as it is right.
        if value != now and not (self.host.has_collected and value == now + 1):
            raise SettingsError(
                f"num_updates was set to {value}, and {now} iterations are done; begin with them, so that a resumed "
                f"run goes on: for iteration in range(self.num_updates, self.num_iterations)",
                code="E0268",
            )
        self._num_counted = value

    @property
    def model_version(self) -> int:
        """The number of versions that were broadcast since the first."""
        return self.host.version

    # -- inside ----------------------------------------------------------------------------------------------------

    def _train_in(self, host: HostedTrainer) -> None:
        """Trains inside a hosted loop."""
        self._hosts.append(host)
        host.name = type(self).__name__
        # A resumed run may have another number of ranks than the configuration.
        self.rank, self.num_workers = host.world.rank, host.world.size
        self.gae_actor = own_actor(self.rank, self.gae_actor, GAEWorker, self.config.discount, self.config.gae_lambda)
        self._kept, self._num_counted = set(), 0
        try:
            self._train_func()
        finally:
            self._hosts.pop()
        if host.progress.iteration == 0 and not host.has_collected:
            raise HostedError(
                f"{host.name}.train returned without an iteration: self.fetch_fragments_and_estimate_advantages(...), "
                f"an update, and self.broadcast_model_to_rollout_workers(new_version=True)"
            )

    def _train_func(self, config: Keywords | None = None) -> None:
        """Sets up model and optimizer, broadcasts the first weights, and trains; on Ray, in `TorchTrainer`'s worker."""
        takes = inspect.signature(self.setup_model_and_optimizer)
        is_given = any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in takes.parameters.values())
        given = [self.policy_generator] if is_given else []
        try:
            takes.bind(*given)
        except TypeError as error:
            raise SettingsError(
                f"setup_model_and_optimizer of {type(self).__name__} takes {takes}; expected one argument or none",
                code="E0267",
            ) from error
        made = self.setup_model_and_optimizer(*given)
        if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
            found = [type(each).__name__ for each in made] if isinstance(made, tuple) else type(made).__name__
            raise SettingsError(
                f"setup_model_and_optimizer of {type(self).__name__} returned {found}; expected (model, optimizer) or "
                f"(model, optimizer, scaler)",
                code="E0267",
            )
        self.inner_model, self.optimizer = made[:2]
        # In place, so that the optimizer has its parameters still.
        self.model = self.inner_model.to(self.host.policy.device)
        self.scaler = made[-1] if len(made) > 2 else None
        vars(self).pop("_evaluator", None)
        self._kept |= {"inner_model", "model", "optimizer", "scaler"}
        if self.host.begins_from_policy and self.host.progress.iteration == 0:
            # The acting policy has the weights of the checkpoint; the first broadcast would lose them.
            _copy_weights(self._policy.network, self.inner_model)
        self.host.keep(model=self.inner_model, optimizer=self.optimizer)
        if self.host.progress.iteration == 0:
            self.broadcast_model_to_rollout_workers(new_version=True)
        self.train()

    def _keep_parts(self) -> None:
        """Hands objects with state that `train` made, and dataclasses, to the run, once each."""
        found = {
            name: value
            for name, value in vars(self).items()
            if name not in self._kept
            and not name.startswith("_")
            and (isinstance(value, _KEPT) or (is_dataclass(value) and not isinstance(value, type)))
        }
        if found:
            self._kept |= found.keys()
            self.host.keep(**found)

    @property
    def _policy(self) -> MinePolicyAdapter:
        policy = self.host.policy
        assert isinstance(policy, MinePolicyAdapter)
        return policy

    @cached_property
    def _evaluator(self) -> MinePolicyAdapter:
        """The policy with the user's model as its network."""
        made = deepcopy(self._policy)
        made.network = made.layout.network = self.inner_model  # type: ignore[assignment]  # it took the same weights
        return made.to(next(self.inner_model.parameters()).device)

    @torch.no_grad()
    def _judge(self, block: FragmentBlock) -> tuple[Tree, torch.Tensor, torch.Tensor]:
        """Returns logits, log-probabilities and values [T, F] by the current weights, in evaluation mode."""
        was_training = self.inner_model.training
        self.inner_model.eval()
        size = self.config.inference_batch_size_per_gpu or self.config.batch_size_per_gpu
        columns = torch.arange(block.num_fragments)
        parts = [self._replay(block, columns[start : start + size]) for start in range(0, len(columns), size)]
        self.inner_model.train(was_training)
        logits, log_probs, values = zip(*parts, strict=True)
        return mapped(_joined, *logits), _joined(*log_probs), _joined(*values)

    def _replay(self, block: FragmentBlock, columns: torch.Tensor) -> tuple[Tree, torch.Tensor, torch.Tensor]:
        policy, num_steps, num_columns = self._evaluator, block.num_steps, len(columns)
        batch = {name: rows[:-1, columns].reshape(num_steps * num_columns, *rows.shape[2:])
                 for name, rows in block.storage.items()}  # fmt: skip
        batch = dict(moved({**batch, f.POLICY_STATE: block.policy_state[columns]}, policy.device))
        shapes: dict[str, tuple[int, ...]] = {}

        def note(module: nn.Module, given: Tree, result: Tree) -> None:
            logits = flatten(policy.spec.action, result[0]["pi_logits"], f.ACTION)
            shapes.update({name: tuple(each.shape[2:]) for name, each in logits.items()})

        with policy.network.register_forward_hook(note):
            judged, head, output = policy.evaluate_outputs(batch)
        value = judged[f.VALUE]
        if policy.normalizes_values and policy.normalizer is not None:
            mean, variance = ewma_moments(policy.normalizer)
            value = (value - mean) / variance.sqrt()
        # In the shapes in which the module itself says them, for its own head.
        shaped = {
            name: output[:, place].view(num_steps, num_columns, *shapes[name])
            for name, (place, _, _) in zip(head.names, head.columns, strict=True)
        }
        return (
            build(policy.spec.action, shaped, f.ACTION),
            judged[f.LOG_PROB].view(num_steps, num_columns),
            value.view(num_steps, num_columns),
        )


def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copies weights between the user's model and the module that acts."""
    try:
        target.load_state_dict(source.state_dict())
    except RuntimeError as error:
        raise SettingsError(
            f"the model of setup_model_and_optimizer is not one that policy_generator makes "
            f"({' '.join(str(error).split())[:200]}); return self.policy_generator() or one like it",
            code="E0267",
        ) from error


def _joined(*parts: torch.Tensor) -> torch.Tensor:
    """Returns the values [T, F] of fragments that were evaluated in parts, on the CPU."""
    return torch.cat(parts, dim=1).cpu()
