"""Fuzzed decoders: bytes that nobody wrote, and bytes that somebody wrote to do harm.

A decoder gives a value or raises what it declares, in time and memory that the input's size bounds. What comes in two speeds gives the
same twice, and what can be written again is written as it was.
"""

from __future__ import annotations

import resource
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from random import Random
from types import FrameType

from tests.torture import (
    answer_decoders,
    controller_decoders,
    dledger_decoders,
    file_decoders,
    live_decoders,
    message_decoders,
    query_decoders,
    record_decoders,
    replication_decoders,
    server_decoders,
    state_decoders,
    wire_decoders,
)
from tests.torture.decoders import Decoder
from tests.torture.kind import Kind, Outcome
from tests.torture.mutations import Mutator, smallest
from tests.torture.samples import Samples

DECODERS: tuple[Decoder, ...] = tuple(
    decoder
    for module in (
        record_decoders,
        message_decoders,
        file_decoders,
        state_decoders,
        wire_decoders,
        answer_decoders,
        live_decoders,
        query_decoders,
        server_decoders,
        controller_decoders,
        dledger_decoders,
        replication_decoders,
    )
    for decoder in module.DECODERS
)
ROUND_SHARE = 2.0
"""How often a round of the torture gives each decoder its inputs."""

_HANG_CPU_SECONDS: float = 5
_MEMORY_PER_BYTE = 20
_ADDRESS_SPACE_BYTES = 4 << 30
"""Beyond what the process has: an allocation of what a length field says fails at once."""
_STRETCH = 200
_CUTS = 150
_FAILURES_SHOWN = 3
_SHOWN_BYTES, _SHORTENED_BYTES = 600, 1 << 16


class HangError(BaseException):
    """An input took more processor time than any may; no decoder's handler of exceptions takes it for its own."""


def play(
    random: Random, directory: Path, *, share: float = ROUND_SHARE, decoders: Sequence[Decoder] = DECODERS
) -> Outcome:
    """Every decoder gets `share` times its inputs."""
    outcome = Outcome()
    samples = Samples(directory / "samples")
    for number, decoder in enumerate(decoders):
        own = directory / f"decoder-{number}"
        own.mkdir(parents=True)
        _Fuzzed(decoder, own, outcome).run(_inputs(decoder, random, samples, share))
    return outcome


def _inputs(decoder: Decoder, random: Random, samples: Samples, share: float) -> Iterator[bytes]:
    made = [sample[: decoder.max_bytes] for sample in decoder.samples(samples)]
    mutator = Mutator(random, made, decoder.words, max_bytes=decoder.max_bytes)
    count = max(1, round(share * decoder.inputs))
    yield from made
    yield from mutator.cuts(min(_CUTS, max(1, count // 4)))
    yield from decoder.bombs()
    for _ in range(count):
        yield mutator.next()


class _Fuzzed:
    """One decoder in a round."""

    def __init__(self, decoder: Decoder, directory: Path, outcome: Outcome) -> None:
        self._decoder = decoder
        self._directory = directory
        self._outcome = outcome
        self._failed = 0

    def run(self, inputs: Iterator[bytes]) -> None:
        count = valid = 0
        stretch: list[bytes] = []
        with _limits() as peak:
            for content in takewhile(lambda _: self._failed < _FAILURES_SHOWN, inputs):
                count += 1
                valid += self._try(content)
                stretch.append(content)
                if len(stretch) == _STRETCH or len(content) > self._decoder.max_bytes:
                    self._check_memory(peak, stretch)
                    stretch.clear()
            self._check_memory(peak, stretch)
        self._outcome.trials += count
        self._outcome.figures[self._decoder.name] += count
        self._outcome.figures["inputs taken for valid"] += valid
        assert valid or self._failed, f"{self._decoder.name}: no input is valid, so nothing was looked into"

    def _try(self, content: bytes) -> bool:
        try:
            return self._decoder.read(content, self._directory)
        except self._decoder.declared:
            return False
        except HangError:
            self._fail(content, f"took more than {_HANG_CPU_SECONDS} s of processor time")
        except Exception as error:  # everything else is what is looked for
            kind, text = type(error), "".join(traceback.format_exception(error, limit=-6))
            if self._failed < _FAILURES_SHOWN and len(content) < _SHORTENED_BYTES:
                content = smallest(content, lambda other: self._fails(other, kind))
            self._fail(content, f"let {kind.__name__} out\n{text}")
        finally:
            _rewind_clock()
        return False

    def _fails(self, content: bytes, kind: type[Exception]) -> bool:
        try:
            self._decoder.read(content, self._directory)
        except self._decoder.declared:
            return False
        except Exception as error:
            return type(error) is kind
        return False

    def _check_memory(self, peak: _Peak, stretch: Sequence[bytes]) -> None:
        """Nothing of a stretch may have taken more than its greatest input allows."""
        greatest = max(map(len, stretch), default=0)
        grown = peak.growth_bytes()
        if grown > self._decoder.memory_bytes + _MEMORY_PER_BYTE * greatest:
            self._fail(
                max(stretch, key=len),
                f"grew by {grown >> 20} MiB over inputs of at most {greatest} bytes; the greatest",
            )

    def _fail(self, content: bytes, what: str) -> None:
        self._failed += 1
        shown = repr(content[:_SHOWN_BYTES]) + (f"… ({len(content)} bytes)" if len(content) > _SHOWN_BYTES else "")
        self._outcome.failures.append(f"{self._decoder.name} {what}\ninput {shown}")


@contextmanager
def _limits() -> Iterator[_Peak]:
    """Processor time for one input, and address space; where the system lets us have them."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise HangError

    before, (soft, hard) = signal.signal(signal.SIGPROF, hang), resource.getrlimit(resource.RLIMIT_AS)
    size = _status_bytes("VmSize")
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESS_SPACE_BYTES, hard))
    _rewind_clock()
    try:
        yield _Peak()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _rewind_clock() -> None:
    signal.setitimer(signal.ITIMER_PROF, _HANG_CPU_SECONDS)


class _Peak:
    """The most memory that this process has held, from now on."""

    def __init__(self) -> None:
        self._before = 0
        self.growth_bytes()

    def growth_bytes(self) -> int:
        """How far it has been above what it is now, or was when last asked if that is more. 0 where Linux does not tell.

        The system may take back what had been read of files before: what it is now can be less than what it was.
        """
        now = _status_bytes("VmRSS")
        grown = max(0, _status_bytes("VmHWM") - max(now, self._before))
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak begins anew
        self._before = now
        return grown


def _status_bytes(name: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return 0


KIND = Kind(
    "fuzz",
    "Decoders give a value or a declared error, in bounded time and memory, and agree with each other",
    "inputs",
    play,
)
