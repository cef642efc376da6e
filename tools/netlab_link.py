# SPDX-License-Identifier: Apache-2.0
"""What a link is: the text RATE[,LATENCY], and the settings that make the kernel obey it."""

import re
from dataclasses import dataclass

NUMBER = r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
RATE = re.compile(NUMBER + "(bit|kbit|mbit|gbit)")
TIME = re.compile(NUMBER + "(us|ms|s)")
UNITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "us": 1, "ms": 1e3, "s": 1e6}


class NetlabError(Exception):
    """netlab cannot do what it was asked for; the text says why and what to do."""


@dataclass(frozen=True)
class Link:
    """Rate of each rank in each direction, and one-way latency."""

    bits_per_second: int
    latency_us: int | None  # None: none was given

    def __str__(self) -> str:
        rate = f"{self.bits_per_second / 1e6:g} Mbit/s"
        return f"{rate}, {self.latency_us / 1e3:g} ms" if self.latency_us else rate


def parse_link(text: str) -> Link:
    rate_text, comma, latency_text = text.partition(",")
    rate, latency = RATE.fullmatch(rate_text), TIME.fullmatch(latency_text)
    if not rate or (comma and not latency):
        raise NetlabError(
            f'link "{text}" is not a rate and a latency; write for example 100mbit,2ms '
            "(kbit, mbit or gbit per second; us, ms or s)"
        )
    bits = float(rate[1]) * UNITS[rate[2]]
    microseconds = float(latency[1]) * UNITS[latency[2]] if latency else None
    if not 1e4 <= bits <= 1e11:
        raise NetlabError(f'the rate of link "{text}" must be from 10kbit to 100gbit')
    if microseconds is not None and not (microseconds == 0 or 1 <= microseconds <= 1e7):
        raise NetlabError(f'the latency of link "{text}" must be 0ms, or from 1us to 10s')
    return Link(round(bits), None if microseconds is None else round(microseconds))


@dataclass(frozen=True)
class Shape:
    """Settings of a device and its TBF (token bucket filter), all in bytes.

    The bucket decides how honest short messages are: what fits into it travels at once. But a
    frame that does not fit is split in software, which at 1 Gbit/s takes a whole core. So the
    bucket holds one and a half frames, and frames are as large as what the link sends in 0.65 ms:
    8 KB at 100 Mbit/s, the kernel's limit of 64 KB from 800 Mbit/s on.
    """

    frame: int
    bucket: int
    queue: int


def shape(link: Link) -> Shape:
    rate = link.bits_per_second / 8
    frame = min(65536, max(2048, int(rate * 0.65e-3)))
    # Above 2 Gbit/s the bucket must last until the kernel looks again.
    bucket = max(frame * 3 // 2, int(rate * 0.4e-3))
    # A queue shorter than 250 KB loses packets of every burst; on a long link TCP needs to keep
    # a round trip of bytes in flight.
    round_trip = 2e-6 * (link.latency_us or 0)
    queue = bucket + max(250_000, int(rate * (0.010 + round_trip)))
    return Shape(frame, bucket, queue)
