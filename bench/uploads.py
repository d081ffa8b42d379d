"""Nanoseconds a parameter to make and to read an upload, and ratios to a memory copy.

What is timed on the client: clip, add noise, quantise, pack. On the server: unpack, dequantise.
Last, the noise and the masks of pairs, a coordinate and peer.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from strategies.dp_fedpaq import DpFedPaqParameters
from strategies.dp_fedpaq.algorithm import (
    client_mechanism,
    decode_update,
    encode_update,
    privatize_update,
)
from strategies.mechanisms.pairwise_noise import sum_pair_noise, sum_uniform_masks
from strategies.mechanisms.rng import Randomness

PEERS = 5


def median_ns(action: Callable[[], object], size: int, repeats: int) -> float:
    action()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) / size * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    size, repeats = arguments.size, arguments.repeats
    update = np.random.default_rng(0).normal(size=size)
    floats = update.astype(np.float32)
    copy = median_ns(lambda: floats.copy(), size, repeats)
    generator = np.random.default_rng(1)
    normal = median_ns(lambda: generator.standard_normal(size), size, repeats)
    print(f"d = {size}; float32 copy {copy:.2f} ns, numpy normal {normal:.2f} ns a parameter")
    print("| randomness | quantiser | make, ns | make / copy | read, ns | read / copy |")
    print("|---|---|---|---|---|---|")
    for kind in ("seeded", "secret"):
        for quantizer, levels in (("none", 1), ("qsgd", 7), ("qsgd", 100), ("qsgd", 1000)):
            parameters = DpFedPaqParameters(
                num_participations=1,
                noise_multiplier=1.0,
                local_steps=1,
                quantizer=quantizer,
                num_levels=levels,
                randomness=kind,  # type: ignore[arg-type]
            )
            mechanism = client_mechanism(parameters, 1, 100)
            randomness = Randomness(parameters.randomness, 0)

            def make(p=parameters, m=mechanism, r=randomness) -> bytes:
                private = privatize_update(update, p, m, r.stream("noise"))
                return encode_update(private, p, r.stream("rounding"))

            data = make()
            making = median_ns(make, size, repeats)
            reading = median_ns(
                lambda d=data, p=parameters: decode_update(d, size, p), size, repeats
            )
            name = quantizer if quantizer == "none" else f"qsgd, s = {levels}"
            print(
                f"| {kind} | {name} | {making:.1f} | {making / copy:.0f} | {reading:.1f} | "
                f"{reading / copy:.0f} |"
            )
    keys = [bytes([number]) * 32 for number in range(PEERS)]
    print("| pair noise | ns a coordinate and peer | / copy | / numpy normal |")
    print("|---|---|---|---|")
    for name, total in (("gaussian", sum_pair_noise), ("uniform", sum_uniform_masks)):
        drawing = median_ns(lambda t=total: t(keys, [], size), size * PEERS, repeats)
        print(f"| {name} | {drawing:.2f} | {drawing / copy:.0f} | {drawing / normal:.2f} |")


if __name__ == "__main__":
    main()
