"""Faults made of an operation's order: each of its steps left out, and each deferred until after the step that follows.

An `Order` names the operation and, step by step, the callables of the engine that make the step. A step is left out where its
callables do nothing and give a plausible result; it is late where they are put off until the next step's have run. Only calls within
the operation are touched, so that a callable that many operations share is wrong in one of them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an order, as storage/README.md calls it."""

    text: str
    calls: str = ""
    """What makes it: MODULE:NAME or MODULE:CLASS.NAME, several between blanks. "" = it only looks: what follows is made of what it
    finds."""
    when: Callable[..., bool] = lambda *arguments, **named: True
    """Which calls are the step, by their arguments."""
    gives: Callable[..., Any] = lambda *arguments, **named: None
    """What a call that is left out, or put off, gives its caller."""
    within: str = ""
    """Where the calls are the step, if not in all of the operation."""
    swap: Callable[[], Any] | None = None
    """How the step comes late, as a context, where that is no call put off."""


@dataclass(frozen=True, slots=True)
class Order:
    """What storage/README.md says under a heading behind **`title`.**, and where the operation begins and ends."""

    heading: str
    within: str
    """Callables, as in `Step.calls`: only what they call is meant. "" = any caller."""
    steps: tuple[Step, ...]
    stories: tuple[str, ...] = ()
    """Of tests/crash/stories: one of them notices each fault for which `orders/verdicts.py` names no other judge."""
    title: str = "Order"

    @property
    def name(self) -> str:
        return self.heading + self.title.removeprefix("Order")

    @property
    def acting(self) -> list[Step]:
        """The steps but for those that only look."""
        return [step for step in self.steps if step.calls]


class StepFault(NamedTuple):
    """One step of an order left out (`next_step` None), or deferred until after the next one."""

    order: Order
    step: Step
    next_step: Step | None = None

    @property
    def name(self) -> str:
        what = f'after "{self.next_step.text}"' if self.next_step else "is left out"
        return f'{self.order.name}: "{self.step.text}" {what}'


def faults_of(order: Order) -> Iterator[StepFault]:
    """Every step that acts left out, and every one but the last late."""
    steps = order.acting
    for number, step in enumerate(steps):
        yield StepFault(order, step)
        if number + 1 < len(steps):
            yield StepFault(order, step, steps[number + 1])


@dataclass(slots=True)
class Met:
    """How often a planted fault was met."""

    count: int = 0


@contextmanager
def planted(fault: StepFault) -> Iterator[Met]:
    """The fault, as long as the context lasts."""
    met = Met()
    order, step = fault.order, fault.step
    with ExitStack() as stack:
        if fault.next_step is not None and step.swap is not None:
            stack.enter_context(step.swap())
            met.count = 1
        else:
            late = _Deferred() if fault.next_step is not None else None
            operation = stack.enter_context(_window(order.within, late))
            if late is not None and fault.next_step is not None:
                window = stack.enter_context(_window(fault.next_step.within)) if fault.next_step.within else operation
                for target in fault.next_step.calls.split():
                    stack.enter_context(_replaced(target, _followed(fault.next_step, late, window)))
            window = stack.enter_context(_window(step.within)) if step.within else operation
            for target in step.calls.split():
                stack.enter_context(_replaced(target, _touched(step, late, (operation, window), met)))
        yield met


@dataclass(slots=True)
class _Window:
    """Whether the operation is under way."""

    depth: int


@dataclass(slots=True)
class _Deferred:
    """Calls that are put off."""

    calls: list[Callable[[], Any]] = field(default_factory=list)
    is_running: bool = False
    depth: int = 0
    """Of calls of the next step: one that calls what it overrides is one call."""

    def run(self) -> None:
        """All that are put off, in their order."""
        if self.is_running:
            return
        self.is_running = True
        try:
            while self.calls:
                self.calls.pop(0)()
        finally:
            self.is_running = False


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _touched(step: Step, late: _Deferred | None, windows: tuple[_Window, _Window], met: Met) -> Wrap:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            is_meant = all(window.depth for window in windows) and not (late is not None and late.is_running)
            if not is_meant or not step.when(*arguments, **named):
                return original(*arguments, **named)
            met.count += 1
            if late is not None:
                kept = _kept(arguments)
                late.calls.append(lambda: original(*kept, **named))
            return step.gives(*arguments, **named)

        return call

    return wrap


def _followed(step: Step, late: _Deferred, window: _Window) -> Wrap:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            late.depth += 1
            try:
                result = original(*arguments, **named)
            finally:
                late.depth -= 1
            if window.depth and not late.depth and step.when(*arguments, **named):
                late.run()
            return result

        return call

    return wrap


@contextmanager
def _window(targets: str, late: _Deferred | None = None) -> Iterator[_Window]:
    """What is put off at the operation's end is done then."""
    window = _Window(0 if targets else 1)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            window.depth += 1
            try:
                result = original(*arguments, **named)
                if late is not None and window.depth == 1:
                    late.run()
                return result
            finally:
                window.depth -= 1

        return call

    with ExitStack() as stack:
        for target in targets.split():
            stack.enter_context(_replaced(target, wrap))
        yield window


@contextmanager
def _replaced(target: str, wrap: Wrap) -> Iterator[None]:
    """A function in every module that holds it; a method in its class and in each that overrides it."""
    module, _, name = target.partition(":")
    owner, _, attribute = name.rpartition(".")
    home = importlib.import_module(module)
    places: list[tuple[Any, str]] = []
    if owner:
        cls = getattr(home, owner)
        places = [(found, attribute) for found in (cls, *_subclasses(cls)) if attribute in vars(found)]
    else:
        function = getattr(home, name)
        for found in list(sys.modules.values()):
            for key, value in list(vars(found).items()) if inspect.ismodule(found) else ():
                if value is function:
                    places.append((found, key))
    assert places, f"nothing is called {target}"
    wrappers: dict[Any, Any] = {}
    originals = [(place, key, vars(place)[key]) for place, key in places]
    for place, key, original in originals:
        if original not in wrappers:
            wrappers[original] = wrap(original)
        setattr(place, key, wrappers[original])
    try:
        yield
    finally:
        for place, key, original in originals:
            setattr(place, key, original)


def path_ends(*ends: str) -> Callable[..., bool]:
    """Calls that name a path with such an end."""
    return lambda *arguments, **named: any(isinstance(value, str) and value.endswith(ends) for value in arguments)


def is_file(*arguments: Any, **named: Any) -> bool:
    """Calls whose last argument is a file of the log, of a queue or of its units: such a name is a number of twenty digits."""
    return str(arguments[-1])[-20:].isdigit()


def is_directory(*arguments: Any, **named: Any) -> bool:
    """Calls that name a directory of such files."""
    return not is_file(*arguments)


def path_has(part: str) -> Callable[..., bool]:
    """Calls that name a path, or a list of them, with this part."""

    def has(*arguments: Any, **named: Any) -> bool:
        paths = [
            value if isinstance(value, str) else (*value, "")[0]
            for value in arguments
            if isinstance(value, str | list | tuple)
        ]
        return any(isinstance(path, str) and part in path for path in paths)

    return has


def _subclasses(cls: type) -> Sequence[type]:
    return [found for child in cls.__subclasses__() for found in (child, *_subclasses(child))]


def _kept(value: Any) -> Any:
    """A call's arguments as they are now: buffers are used again."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, memoryview):
        return bytes(value)
    if type(value) is tuple:
        return tuple(map(_kept, value))
    return value
