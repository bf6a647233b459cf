"""Tell which inputs of a trained classifier are out-of-distribution, at test time.

Take the features and logits a network already computes, regress any score on the features, and use the
fitted value as the better score. Higher scores are more in-distribution, everywhere.
"""

from truing_command import end_if_interrupted, is_started_by_name

if is_started_by_name():
    end_if_interrupted()

from .detection import Detection, detect
from .detector import Detector
from .fits import fit_direct, fit_robust
from .huber_regression import HuberFit, huber
from .least_squares import LinearFit
from .metrics import Report, aupr, aupr_out, auroc, evaluate, fpr_at_tpr
from .moments import Moments
from .outputs import Outputs
from .sample import sample
from .saved import load, save
from .scores import SCORES, energy, gradnorm, kl_uniform, max_logit, msp
from .shaping import react, react_clip
from .threshold import Decision, benjamini_hochberg, is_out, p_values, threshold_at

__version__ = "0.1.0"

__all__ = [
    "SCORES",
    "Decision",
    "Detection",
    "Detector",
    "HuberFit",
    "LinearFit",
    "Moments",
    "Outputs",
    "Report",
    "aupr",
    "aupr_out",
    "auroc",
    "benjamini_hochberg",
    "detect",
    "energy",
    "evaluate",
    "fit_direct",
    "fit_robust",
    "fpr_at_tpr",
    "gradnorm",
    "huber",
    "is_out",
    "kl_uniform",
    "load",
    "max_logit",
    "msp",
    "p_values",
    "react",
    "react_clip",
    "sample",
    "save",
    "threshold_at",
]
