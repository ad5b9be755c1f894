"""Options of differential privacy, compression and secure aggregation."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_pfl.federation.gradient_privacy import SamplePrivacy
from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.federation.threat_options import ThreatOptions, described, made_with, with_arrays
from fedjax_pfl.uploads.compression import COMPRESSORS, Compressor
from fedjax_pfl.uploads.pipeline import FEEDBACKS, PLACEMENTS, AdaptiveClip, ClientPrivacy, Uploads
from fedjax_pfl.uploads.secure import FixedPoint
from fedjax_pfl.utils.errors import InputError

NONE = "none"
SECURE = "secure aggregation"
PRIVATE = "dp='client' or dp='sample'"  # what options of privacy need


@dataclass(frozen=True)
class PrivacyOptions(OptionGroup):
    """Differential privacy: of clients, by what they send, or of samples, by local gradients."""

    dp: str = option(
        NONE, "unit of differential privacy: {choices}", choices=(NONE, "client", "sample")
    )
    dp_clip: float | None = option(
        None,
        "largest norm of a client's update, or of the gradient of a sample; a longer one is scaled "
        "down to it",
        within="(0, inf)",
        noun="a finite number",
        needs=PRIVATE,
    )
    dp_noise: float = option(
        0.0,
        "noise multiplier: the noise's standard deviation divided by the clip",
        within="[0, inf)",
        noun="a finite number",
        needs=PRIVATE,
    )
    dp_epsilon: float | None = option(
        None,
        "epsilon of the whole run, from which the noise is computed",
        within="(0, inf)",
        noun="a finite number",
        needs=PRIVATE,
    )
    dp_delta: float = option(
        1e-5, "delta of the epsilon", within="(0, 1)", noun="a number", needs=PRIVATE
    )
    dp_placement: str = option(
        "local",
        "placement of the noise: {choices}; 'local' adds all of it to each upload, 'distributed' a "
        "share, for algorithms whose server needs only sums",
        choices=PLACEMENTS,
        needs="dp='client'",
    )
    dp_adaptive_clip: bool = option(
        False, "let the clip follow the median of the updates' norms", needs="dp='client'"
    )
    dp_public_validation: bool = option(
        False,
        "validation samples are public: algorithms and patience use them without noise",
        needs=PRIVATE,
    )
    dp_strict: bool = option(
        False,
        "refuse minibatches and cohorts of a fixed size, which are accounted as if each "
        "sample or client were drawn independently",
        needs=PRIVATE,
    )

    def validate(self) -> None:
        if self.dp != NONE and self.dp_clip is None:
            raise InputError(
                f"dp={self.dp!r} must have a dp_clip: noise without a bound hides nothing."
            )
        if self.dp_noise and self.dp_epsilon is not None:
            raise InputError("Give one of dp_noise and dp_epsilon: each decides the other.")

    def of_samples(self, dtype: str) -> SamplePrivacy | None:
        """Return clipping and noise of local gradients; noise for an epsilon follows later."""
        if self.dp != "sample":
            return None
        clip: Any = np.asarray(self.dp_clip, dtype)
        noise = np.asarray(self.dp_noise, dtype)
        epsilon, public = self.dp_epsilon, self.dp_public_validation
        noise = noise if epsilon is None else None
        return SamplePrivacy(clip, noise, epsilon, self.dp_delta, public, self.dp_strict)

    def of_clients(self) -> ClientPrivacy | None:
        """Return clipping and noise of uploads; noise for an epsilon follows later."""
        if self.dp != "client":
            return None
        adaptive = AdaptiveClip() if self.dp_adaptive_clip else None
        noise = jnp.float32(self.dp_noise) if self.dp_epsilon is None else None
        return ClientPrivacy(
            jnp.float32(self.dp_clip), noise, self.dp_placement, adaptive,
            self.dp_epsilon, self.dp_delta, self.dp_strict, self.dp_public_validation,
        )  # fmt: skip


@dataclass(frozen=True)
class CompressionOptions(OptionGroup):
    """Compression of what clients send, and the numbers of secure aggregation."""

    compress: str = option(
        NONE, "compressor of updates: {choices}", choices=(NONE, *sorted(COMPRESSORS))
    )
    compress_options: dict[str, Any] | None = option(
        None, "options of the compressor, such as {'rate': 0.01}", needs="compress"
    )
    error_feedback: str = option(
        NONE,
        "feedback that sends later what compression left out: {choices}",
        choices=(NONE, *FEEDBACKS),
        called="error feedback",
        needs="compress",
    )
    secure_bits: int | None = option(
        None, "bits of the numbers that secure aggregation adds up, such as 32", low=1
    )
    secure_options: dict[str, Any] | None = option(
        None,
        "options of secure aggregation's numbers, such as {'levels': 1024}",
        needs="secure_bits",
    )

    def notes(self) -> list[str]:
        """Return sentences on compression and secure aggregation for tables."""
        notes = []
        if self.compress != NONE:
            feedback = f", error feedback {self.error_feedback}" * (self.error_feedback != NONE)
            how = described(self.compress, self.compress_options)
            notes.append(f"uploads compressed by {how}{feedback}")
        if self.secure_bits is not None:
            numbers = described(f"numbers of {self.secure_bits} bits", self.secure_options)
            notes.append(f"secure aggregation in {numbers}, equal weights")
        return notes

    def compressor(self) -> Compressor | None:
        """Return the compressor of updates.

        Raises:
          InputError: no such option.
        """
        if self.compress == NONE:
            return None
        return made_with("compressor", self.compress, COMPRESSORS, self.compress_options)

    def fixed_point(self, members: int) -> FixedPoint | None:
        """Return the numbers of secure aggregation.

        Raises:
          InputError: sums of so many members may wrap, or no such option.
        """
        if self.secure_bits is None:
            return None
        known = {SECURE: partial(FixedPoint, self.secure_bits)}
        made = made_with("secure", SECURE, known, self.secure_options)
        made.validate(members)
        return made


def uploads_of(
    privacy: PrivacyOptions, threat: ThreatOptions, compression: CompressionOptions,
    ids: np.ndarray, members: int,
) -> Uploads | None:  # fmt: skip
    """Return the stage between clients and the server; None if uploads arrive as they are sent."""
    attack, attackers = threat.upload_attack(), threat.attackers_of(ids)
    feedback = compression.error_feedback
    made = Uploads(
        privacy=privacy.of_clients(),
        compressor=compression.compressor(),
        feedback=None if feedback == NONE else feedback,
        attack=attack,
        attackers=None if attackers is None else jnp.asarray(attackers, jnp.int32),
        fixed_point=compression.fixed_point(members),
    )
    made = with_arrays(made)
    idle = made.privacy is made.compressor is made.attack is made.fixed_point is None
    return None if idle and attackers is None else made
