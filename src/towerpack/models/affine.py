"""What norms end with: one scale and one shift per channel."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.data_format import per_channel
from towerpack.models.registry import VariableHolder

# Argument names of old scripts, for all norms.
OLD_NORM_NAMES = {
    "use_bias": "center",
    "use_scale": "scale",
    "gamma_init": "gamma_initializer",
}


class Affine:
    """`gamma` and `beta`, in float32 as the statistics of norms are; each may be left out."""

    def __init__(
        self,
        channels: int,
        center: bool,
        scale: bool,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
    ):
        self.channels, self.variables = channels, VariableHolder()
        if center:
            self.variables.beta = self._make("beta", beta_initializer or v1.zeros_initializer())
        if scale:
            self.variables.gamma = self._make("gamma", gamma_initializer or v1.ones_initializer())

    def _make(self, name: str, initializer: Any) -> Any:
        return v1.get_variable(name, [self.channels], dtype=tf.float32, initializer=initializer)

    @property
    def beta(self) -> Any:
        """The shift, zeros if there is none."""
        return vars(self.variables).get("beta", tf.zeros([self.channels]))

    @property
    def gamma(self) -> Any:
        """The scale, ones if there is none."""
        return vars(self.variables).get("gamma", tf.ones([self.channels]))

    def normalize(
        self, x: Any, mean: Any, variance: Any, epsilon: float, data_format: str = "channels_last"
    ) -> Any:
        """(x - mean) / sqrt(variance + epsilon) * gamma + beta, computed in float32.

        `mean` and `variance` must be shaped to be broadcast over `x`.
        """
        rank = x.shape.rank
        factor = tf.math.rsqrt(variance + epsilon)
        if "gamma" in vars(self.variables):
            factor *= per_channel(self.variables.gamma, rank, data_format)
        # The mean goes first: for large means, x * factor would lose the digits that matter.
        return self._shifted((tf.cast(x, tf.float32) - mean) * factor, x.dtype, data_format)

    def apply(self, normal: Any, dtype: Any, data_format: str = "channels_last") -> Any:
        """What is normal already, times gamma, plus beta, as `dtype`."""
        if "gamma" in vars(self.variables):
            normal *= per_channel(self.variables.gamma, normal.shape.rank, data_format)
        return self._shifted(normal, dtype, data_format)

    def _shifted(self, output: Any, dtype: Any, data_format: str) -> Any:
        if "beta" in vars(self.variables):
            output += per_channel(self.variables.beta, output.shape.rank, data_format)
        output = tf.cast(output, dtype)
        output.variables = self.variables
        return output
