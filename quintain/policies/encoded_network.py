"""Policies with one network for acting: observations are encoded and go through a multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quintain.data.spec import LeafSpec
from quintain.policies.encoders import Encoder, make_encoder
from quintain.policies.exploring import ExploringPolicy
from quintain.policies.flat_parameters import FlatModule
from quintain.policies.memory import Memory
from quintain.policies.networks import Mlp, first_layers, mlp
from quintain.policies.normalizer import FirstLayer
from quintain.policies.settings import NetworkSettings


class EncodedNetwork(FlatModule):
    """Maps observations, by field name, to outputs [B, output_size]; has a target network where one is needed.

    A dueling one (Wang et al. 2016) has one output more inside, the value of the state: its outputs are that value and
    the advantages around their mean.
    """

    def __init__(
        self,
        specs: Mapping[str, LeafSpec],
        output_size: int,
        settings: NetworkSettings,
        generator: torch.Generator,
        *,
        is_dueling: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(specs, settings, generator)

        def network(size: int) -> Mlp:
            return mlp(
                self.encoder.output_size,
                settings.hidden_sizes,
                size,
                activation=settings.activation,
                output_gain=None,
                generator=generator,
            )

        self.layers = network(output_size)
        self.state_value = network(1) if is_dueling else None

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features = self.encoder(obs)
        outputs: torch.Tensor = self.layers(features)
        if self.state_value is None:
            return outputs
        value: torch.Tensor = self.state_value(features)
        return value + outputs - outputs.mean(dim=1, keepdim=True)

    @property
    def first_layers(self) -> list[FirstLayer]:
        """The layers that read features, which a move of the observations' scale is folded into."""
        return first_layers(*([self.layers] if self.state_value is None else [self.layers, self.state_value]))


class NetworkPolicy(ExploringPolicy):
    """An exploring policy that acts by one network without a hidden state, as compiled kernels read it."""

    network: EncodedNetwork

    @property
    def actor(self) -> Mlp:
        """The network behind the encoder; of a dueling one the part that tells actions apart."""
        return self.network.layers

    @property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """The encoders of actor and critic; there is one."""
        return self.network.encoder, self.network.encoder

    @property
    def memories(self) -> list[Memory]:
        """Recurrent layers: none."""
        return []
