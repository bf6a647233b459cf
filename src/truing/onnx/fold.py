"""An ONNX network with the trued score, and the decision, as outputs of its own.

The head is looked for by its size, among the matrix products with a stored weight. Of several the one that makes an
output of the network, with a bias added or through a softmax and the like, is the head. Where that leaves none or more
than one, the tensors must be named.
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

# TopK and Slice are what is needed since this version of ONNX's operators.
OLDEST_OPSET = 11

# What may stand between the logits and an output of the network.
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
    """Return a copy of an ONNX network that gives `trued_score` (n,) as well, and with a threshold `is_out` (n,).

    The numbers are those of the fit to float32's precision, whatever precision the network computes in.

    Parameters
    ----------
    model
        A file, or what `onnx.load` returns.
    fit
        A fit, a detection by one, or a detector.
    features, logits
        Names of the tensors (n, d) and (n, c) that enter and leave the head; by default those of the one matrix product
        of the fit's size that makes an output. A fit that looks at no logits needs none.
    threshold, accept, false_alarm
        At most one: the score from which rows are accepted, or a rate that it is found by among the scores of known
        rows, which a contrast and a calibrated detector hold. A detection brings its own threshold.
    """
    folding = folding_of(fit, threshold=threshold, accept=accept, false_alarm=false_alarm)
    network = _Network(_loaded(model))
    names = OUTPUTS[: 1 if folding.threshold is None else 2]
    network.check_free(names)
    given, answers = network.head(folding, features, logits)

    graph = Graph(network.proto.graph, network.opset, folding.arrays, network.names)
    of_logits = None if answers is None else graph.as_float32(answers)
    score = folding.score(graph, graph.as_float32(given), of_logits)
    score = graph.add("Reshape", score, graph.whole(-1), output=names[0])
    network.add_output(names[0], "FLOAT", like=given)
    if folding.threshold is not None:
        graph.add("Less", score, folding.threshold, output=names[1])
        network.add_output(names[1], "BOOL", like=given)
    _check(network.proto, "the network")
    return network.proto


def weight_files(model: AnyPath) -> list[Path]:
    """Return the files beside an ONNX network in which weights of it are kept."""
    from onnx import load
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    file = Path(model)
    stored = load(str(file), load_external_data=False).graph.initializer
    return [file.parent / ExternalDataInfo(tensor).location for tensor in stored if uses_external_data(tensor)]


def _loaded(model: AnyPath | ModelProto) -> ModelProto:
    """Return a copy of the network, its weights with it, that ONNX's checker has passed."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"to fold a fit into a network needs onnx: {install('onnx')}") from error
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        _check(copy, "the network")
        return copy
    file = check_readable(model)
    try:
        network = onnx.load(str(file))
    except Exception as error:  # protobuf's own.
        raise ValueError(f"{file} must be an ONNX network: {reason(error)}") from None
    if not network.graph.node:
        raise ValueError(f"{file} must be an ONNX network, got one without nodes")
    _check(network, str(file))
    return network


@dataclass(frozen=True)
class _Product:
    """A matrix product with a stored weight: its tensors, its size, and whether it makes an output of the network."""

    features: str
    logits: str
    size: tuple[int, int]
    makes_output: bool

    def __str__(self) -> str:
        return f"{self.features} → {self.logits} ({self.size[0]} → {self.size[1]})"

    def fits(self, folding: Folding) -> bool:
        """Tell whether it has the fit's width, and its number of classes where the fit looks at logits."""
        return self.size[0] == folding.dimensions and folding.classes in (None, self.size[1])


class _Network:
    """A network that outputs are added to."""

    def __init__(self, proto: ModelProto) -> None:
        self.proto, graph = proto, proto.graph
        versions = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
        self.opset = max(versions, default=0)
        if self.opset < OLDEST_OPSET:
            raise ValueError(
                f"the network must be in ONNX's operators of version {OLDEST_OPSET} or later, got {self.opset}: "
                "onnx.version_converter.convert_version makes it so"
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
        """The names of all tensors, stored ones too."""
        return [*self.tensors, *self._stored]

    def check_free(self, names: tuple[str, ...]) -> None:
        """Refuse a network in which there is a tensor of such a name."""
        for name in names:
            if name in self.names:
                raise ValueError(
                    f"the network has a tensor {name!r} already: rename it, or fold into the plain network"
                )

    def head(self, folding: Folding, features: str | None, logits: str | None) -> tuple[str, str | None]:
        """Return the names of the features and of the logits, None of these where the fit looks at none."""
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
        """Make a tensor (n,) an output; it has as many rows as another one."""
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
        which = f"of {listed(products)}" if products else f"of the tensors {listed(self.tensors)}"
        raise ValueError(f"the network has {number} of the fit's size, {size}: name the features and logits, {which}")

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
        """Return the result of a product, with a stored vector added where that is all that becomes of it."""
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
        """Refuse a tensor that is known to be of another shape than (n, width)."""
        shape = self._shapes.get(tensor)
        if shape is None:
            return
        sizes = [dimension.dim_value or dimension.dim_param or "?" for dimension in shape]
        if len(sizes) != 2 or (isinstance(sizes[1], int) and sizes[1] != width):
            found = f"({', '.join(map(str, sizes))})"
            raise ValueError(f"{name} must be (n, {width}), as the fit has it, got {found} of tensor {tensor!r}")


def _check(proto: ModelProto, name: str) -> None:
    """Refuse what ONNX's own checker refuses: then nodes are in order, with the inputs and outputs that they need."""
    import onnx

    try:
        onnx.checker.check_model(proto)
    except Exception as error:  # A network of more than 2 GB too.
        raise ValueError(f"{name} must pass ONNX's checker: {reason(error)}") from None


def _shapes(proto: ModelProto) -> dict[str, Any]:
    """Return the dimensions of every tensor whose shape is known."""
    from onnx import shape_inference
    from onnx.helper import make_tensor_value_info

    try:
        graph = shape_inference.infer_shapes(proto).graph
    except Exception:  # Too large, or with operators that it does not know: what is declared is known.
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
