"""An ONNX network with the trued score and the decision as additional outputs.

The head is the matrix product whose stored weight has the fit's size. If several products have this size, the head is
the product whose result is an output of the network, possibly after a bias or a softmax. If this does not identify a
single product, the caller must name the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contrast import ContrastFit
from ..data.drafts import AnyPath, check_readable
from ..data.extras import install
from ..detection import Detection
from ..detector import Detector
from ..folding import OUTPUTS, Folding, folding_of
from ..regression.least_squares import LinearFit
from ._graph import Graph
from .extract import listed, reason

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# TopK and Slice have their present form from this opset version on.
OLDEST_OPSET = 11

# Operators that may stand between the logits and an output of the network.
_ENDINGS = ("Softmax", "LogSoftmax", "Sigmoid", "Identity", "Cast")


def folded(
    model: AnyPath | ModelProto,
    fit: LinearFit | ContrastFit | Detection | Detector,
    *,
    features: str | None = None,
    logits: str | None = None,
    threshold: float | None = None,
    accept: float | None = None,
    false_alarm: float | None = None,
) -> ModelProto:
    """Return a copy of an ONNX network with the outputs `trued_score` (n,) and, with a threshold, `is_out` (n,).

    The scores equal the fit's scores within the precision of float32, also if the network computes in another type.

    Parameters
    ----------
    model
        A file, or a loaded `onnx.ModelProto`.
    fit
        A fit, a detection with a fit, or a detector.
    features, logits
        Names of the input (n, d) and output (n, c) of the head. By default, the head is found by the
        fit's size. A fit without logits needs only the features.
    threshold, accept, false_alarm
        At most one: the lowest accepted score, or a rate that determines it from the reference scores in a contrast or
        a calibrated detector. A detection has its own threshold.
    """
    folding = folding_of(fit, threshold=threshold, accept=accept, false_alarm=false_alarm)
    network = _Network(_loaded(model))
    names = OUTPUTS[: 1 if folding.threshold is None else 2]
    network.check_free(names)
    features, logits = network.head(folding, features, logits)

    graph = Graph(network.proto.graph, network.opset, folding.arrays, network.names)
    of_logits = None if logits is None else graph.as_float32(logits)
    score = folding.score(graph, graph.as_float32(features), of_logits)
    score = graph.add("Reshape", score, graph.integers(-1), output=names[0])
    network.add_output(names[0], "FLOAT", like=features)
    if folding.threshold is not None:
        graph.add("Less", score, folding.threshold, output=names[1])
        network.add_output(names[1], "BOOL", like=features)
    _check(network.proto, "the network")
    return network.proto


def weight_files(model: AnyPath) -> list[Path]:
    """Return the external weight files of an ONNX network."""
    from onnx import load
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    file = Path(model)
    stored = load(str(file), load_external_data=False).graph.initializer
    return [file.parent / ExternalDataInfo(tensor).location for tensor in stored if uses_external_data(tensor)]


def _loaded(model: AnyPath | ModelProto) -> ModelProto:
    """Return a checked copy of the network with its weights."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"folding a fit into a network needs onnx: {install('onnx')}") from error
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        _check(copy, "the network")
        return copy
    file = check_readable(model)
    try:
        network = onnx.load(str(file))
    except Exception as error:  # onnx raises a protobuf exception.
        raise ValueError(f"{file} must be an ONNX network: {reason(error)}") from None
    if not network.graph.node:
        raise ValueError(f"{file} must be an ONNX network, got one without nodes")
    _check(network, str(file))
    return network


@dataclass(frozen=True)
class _Product:
    """A matrix product with a stored weight. `makes_output` is True if the result is an output of the network."""

    features: str
    logits: str
    size: tuple[int, int]
    makes_output: bool

    def __str__(self) -> str:
        return f"{self.features} → {self.logits} ({self.size[0]} → {self.size[1]})"

    def fits(self, folding: Folding) -> bool:
        """Return whether the product has the fit's width and, for a fit with logits, its number of classes."""
        return self.size[0] == folding.dimensions and folding.classes in (None, self.size[1])


class _Network:
    """An ONNX network to add outputs to."""

    def __init__(self, proto: ModelProto) -> None:
        self.proto, graph = proto, proto.graph
        versions = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
        self.opset = max(versions, default=0)
        if self.opset < OLDEST_OPSET:
            raise ValueError(
                f"the network must use ONNX operators of version {OLDEST_OPSET} or later, got {self.opset}: use "
                "onnx.version_converter.convert_version"
            )
        self.tensors = [entry.name for entry in graph.input]
        self.tensors += [name for node in graph.node for name in node.output if name]
        self._shapes = _shapes(proto)
        self._uses: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._uses.setdefault(name, []).append(node)
        self._stored = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            if all(name in self._stored for name in node.input if name):
                self._stored.update(node.output)

    @property
    def names(self) -> list[str]:
        """The names of all tensors of the network, including constants."""
        return [*self.tensors, *self._stored]

    def check_free(self, names: tuple[str, ...]) -> None:
        """Reject a network that already has a tensor with one of these names."""
        for name in names:
            if name in self.names:
                raise ValueError(
                    f"the network already has a tensor {name!r}: rename it, or use the network without a trued score"
                )

    def head(self, folding: Folding, features: str | None, logits: str | None) -> tuple[str, str | None]:
        """Return the names of the features and of the logits. The second name is None for a fit without logits."""
        for name in (features, logits):
            if name is not None and name not in self.tensors:
                raise ValueError(f"there is no tensor {name!r} in the network; there are {listed(self.tensors)}")
        if features is None or (logits is None and folding.classes is not None):
            product = self._product(folding, features, logits)
            features, logits = product.features, product.logits
        self._check_shape("features", features, folding.dimensions)
        if folding.classes is None:
            return features, None
        assert logits is not None
        self._check_shape("logits", logits, folding.classes)
        return features, logits

    def add_output(self, name: str, kind: str, *, like: str) -> None:
        """Declare a tensor (n,) as an output with the number of rows of another tensor."""
        from onnx import TensorProto
        from onnx.helper import make_tensor_value_info

        info = make_tensor_value_info(name, TensorProto.DataType.Value(kind), [None])
        if self._shapes.get(like):
            info.type.tensor_type.shape.dim[0].CopyFrom(self._shapes[like][0])
        self.proto.graph.output.append(info)

    def _product(self, folding: Folding, features: str | None, logits: str | None) -> _Product:
        """Return the matrix product that is the head."""
        found = [
            product
            for product in self._products()
            if features in (None, product.features) and logits in (None, product.logits)
        ]
        fitting = [product for product in found if product.fits(folding)]
        chosen = [product for product in fitting if product.makes_output] or fitting
        if len(chosen) == 1:
            return chosen[0]
        size = (
            f"{folding.dimensions} features" if folding.classes is None else f"{folding.dimensions} → {folding.classes}"
        )
        number = "several matrix products" if chosen else "no matrix product"
        products = [str(product) for product in chosen or found]
        which = f"from {listed(products)}" if products else f"from the tensors {listed(self.tensors)}"
        raise ValueError(f"the network has {number} of the fit's size, {size}: pass features= and logits=, {which}")

    def _products(self) -> Iterator[_Product]:
        for node in self.proto.graph.node:
            if node.op_type not in ("Gemm", "MatMul") or node.input[1] not in self._stored:
                continue
            sizes = [dimension.dim_value for dimension in self._shapes.get(node.input[1]) or ()]
            if len(sizes) != 2 or node.input[0] in self._stored or _attribute(node, "transA"):
                continue
            if _attribute(node, "transB"):
                sizes.reverse()
            logits = self._with_bias(node)
            yield _Product(node.input[0], logits, (sizes[0], sizes[1]), self._makes_output(logits))

    def _with_bias(self, node: NodeProto) -> str:
        """Return the name of a product's result or, if its only use is the addition of a stored bias, of the sum."""
        uses = self._uses.get(node.output[0], [])
        has_bias = len(node.input) > 2 and bool(node.input[2])
        is_added_to = not has_bias and [use.op_type for use in uses] == ["Add"]
        if is_added_to and any(name in self._stored for name in uses[0].input):
            return str(uses[0].output[0])
        return str(node.output[0])

    def _makes_output(self, tensor: str) -> bool:
        outputs = {output.name for output in self.proto.graph.output}
        made = [tensor]
        for name in made:
            made += [node.output[0] for node in self._uses.get(name, []) if node.op_type in _ENDINGS]
        return not outputs.isdisjoint(made)

    def _check_shape(self, name: str, tensor: str, width: int) -> None:
        """Reject a tensor whose known shape is not (n, width)."""
        shape = self._shapes.get(tensor)
        if shape is None:
            return
        sizes = [dimension.dim_value or dimension.dim_param or "?" for dimension in shape]
        if len(sizes) != 2 or (isinstance(sizes[1], int) and sizes[1] != width):
            found = f"({', '.join(map(str, sizes))})"
            raise ValueError(f"{name} must have the fit's shape (n, {width}), got {found} of tensor {tensor!r}")


def _check(proto: ModelProto, name: str) -> None:
    """Raise an error if ONNX's checker rejects the network. The checker requires ordered and complete nodes."""
    import onnx

    try:
        onnx.checker.check_model(proto)
    except Exception as error:  # Networks above 2 GB also fail.
        raise ValueError(f"{name} must pass ONNX's checker: {reason(error)}") from None


def _shapes(proto: ModelProto) -> dict[str, Any]:
    """Return the dimensions of every tensor with a known shape."""
    from onnx import shape_inference
    from onnx.helper import make_tensor_value_info

    try:
        graph = shape_inference.infer_shapes(proto).graph
    except Exception:  # The network is too large or has unknown operators: use the declared shapes.
        graph = proto.graph
    shapes = {
        entry.name: list(entry.type.tensor_type.shape.dim)
        for entry in (*graph.input, *graph.value_info, *graph.output)
        if entry.type.tensor_type.HasField("shape")
    }
    for tensor in graph.initializer:
        info = make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        shapes[tensor.name] = list(info.type.tensor_type.shape.dim)
    return shapes


def _attribute(node: NodeProto, name: str) -> int:
    return next((int(entry.i) for entry in node.attribute if entry.name == name), 0)
