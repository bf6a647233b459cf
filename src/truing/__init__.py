"""Tell which inputs of a trained classifier are out-of-distribution, at test time.

Take the features and logits a network already computes, regress any score on the features, and use the
fitted value as the better score. Higher scores are more in-distribution, everywhere.
"""

from .detector import Detector
from .files import load, save
from .fits import fit_direct, fit_robust
from .huber_regression import huber
from .linear import LinearFit
from .metrics import Report, aupr, aupr_out, auroc, evaluate, fpr_at_tpr
from .moments import Moments
from .outputs import Outputs
from .scores import SCORES, energy, gradnorm, kl_uniform, max_logit, msp
from .shaping import react, react_clip
from .threshold import Decision, is_out, p_values, select, threshold_at

__version__ = "0.1.0"

__all__ = [
    "SCORES",
    "Decision",
    "Detector",
    "LinearFit",
    "Moments",
    "Outputs",
    "Report",
    "aupr",
    "aupr_out",
    "auroc",
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
    "save",
    "select",
    "threshold_at",
]
