"""Arithmetic as nodes of an ONNX graph: the operations of a folding, and tensors with + - * /."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..folding import Float32s

if TYPE_CHECKING:
    from onnx import GraphProto

# From this opset version on, the axes of a sum are an input instead of an attribute.
_AXES_AS_INPUT = 13


def _by(operator: str, *, swapped: bool = False) -> Callable[[Tensor, Tensor | float], Tensor]:
    """Return a method of `Tensor` that adds a node with two inputs. If swapped, the tensor is the second input."""

    def method(self: Tensor, other: Tensor | float) -> Tensor:
        return self.graph.add(operator, other, self) if swapped else self.graph.add(operator, self, other)

    return method


class Tensor:
    """A tensor of a graph, by its name. Arithmetic with a tensor adds nodes to its graph."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    __add__ = _by("Add")
    __sub__ = _by("Sub")
    __rsub__ = _by("Sub", swapped=True)
    __mul__ = _by("Mul")
    __truediv__ = _by("Div")
    __rtruediv__ = _by("Div", swapped=True)


class Graph:
    """An ONNX graph to add nodes to, in operators of version `opset`. New names start with an unused prefix."""

    def __init__(self, proto: GraphProto, opset: int, arrays: Mapping[str, Float32s], taken: Sequence[str]) -> None:
        self._proto, self._opset, self._arrays = proto, opset, arrays
        self._prefix = "truing"
        while any(name.startswith(self._prefix) for name in taken):
            self._prefix += "_"

    def add(
        self, operator: str, *inputs: Tensor | float, output: str | None = None, outputs: int = 1, **attributes: Any
    ) -> Tensor:
        """Add a node and return its first output."""
        from onnx.helper import make_node

        names = [value.name if isinstance(value, Tensor) else self.number(value).name for value in inputs]
        first = output or self._new_name(operator)
        given = [first, *(f"{first}_{number}" for number in range(1, outputs))]
        self._proto.node.append(make_node(operator, names, given, name=first, **attributes))
        return Tensor(self, first)

    def number(self, value: float) -> Tensor:
        """Return a constant number."""
        return self._stored(np.array(value, dtype=np.float32))

    def integers(self, *values: int) -> Tensor:
        """Return a constant vector of integers."""
        return self._stored(np.array(values, dtype=np.int64))

    def as_float32(self, name: str) -> Tensor:
        """Return a tensor of the network, cast to float32."""
        from onnx import TensorProto

        return self.add("Cast", Tensor(self, name), to=TensorProto.FLOAT)

    def constant(self, name: str) -> Tensor:
        """Return an array of the folding, by its name."""
        return self._stored(self._arrays[name])

    def minimum(self, x: Tensor, bound: float) -> Tensor:
        """Return the elementwise minimum with a bound."""
        return self.add("Min", x, bound)

    def maximum(self, x: Tensor, bound: float) -> Tensor:
        """Return the elementwise maximum with a bound."""
        return self.add("Max", x, bound)

    def exp(self, x: Tensor) -> Tensor:
        """Return the exponential of each number."""
        return self.add("Exp", x)

    def log(self, x: Tensor) -> Tensor:
        """Return the natural logarithm of each number."""
        return self.add("Log", x)

    def sqrt(self, x: Tensor) -> Tensor:
        """Return the square root of each number."""
        return self.add("Sqrt", x)

    def absolute(self, x: Tensor) -> Tensor:
        """Return the absolute value of each number."""
        return self.add("Abs", x)

    def row_sums(self, x: Tensor) -> Tensor:
        """Return the sum of each row (n, 1)."""
        if self._opset >= _AXES_AS_INPUT:
            return self.add("ReduceSum", x, self.integers(1), keepdims=1)
        return self.add("ReduceSum", x, axes=[1], keepdims=1)

    def descending(self, x: Tensor, number: int) -> Tensor:
        """Return the largest numbers of each row in descending order (n, number)."""
        return self.add("TopK", x, self.integers(number), outputs=2, axis=1)

    def columns(self, x: Tensor, first: int, end: int) -> Tensor:
        """Return the columns from `first` up to `end`."""
        return self.add("Slice", x, self.integers(first), self.integers(end), self.integers(1))

    def _stored(self, array: NDArray[Any]) -> Tensor:
        from onnx.numpy_helper import from_array

        return self.add("Constant", value=from_array(array))

    def _new_name(self, operator: str) -> str:
        return f"{self._prefix}/{operator}_{len(self._proto.node)}"
