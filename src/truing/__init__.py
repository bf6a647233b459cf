"""Detect out-of-distribution inputs of a trained classifier at test time.

truing takes the features and logits that a network already computes, regresses a base score on the features, and uses
the fitted value as a better score. A higher score always means more in-distribution.
"""

from ._threads import threads
from ._warnings import TruingWarning
from .contrast import ContrastFit, fit_contrast
from .decisions.drift import DriftAlarm, DriftReport
from .decisions.thresholds import Decision, benjamini_hochberg, is_out, p_values, threshold_at
from .detection import Detection, detect
from .detector import Detector
from .metrics import Report, aupr, aupr_out, auroc, evaluate, fpr_at_tpr
from .outputs import Outputs
from .regression.fits import fit_direct
from .regression.huber import HuberFit, huber
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .regression.robust import fit_robust
from .sample import sample
from .saved import load, save
from .scores import SCORES, ash, energy, fdbd, gen, gradnorm, kl_uniform, knn, max_logit, msp, nci, scale, vim
from .scores.shaping import react, react_clip

__version__ = "1.0.0"

__all__ = [
    "SCORES",
    "ContrastFit",
    "Decision",
    "Detection",
    "Detector",
    "DriftAlarm",
    "DriftReport",
    "HuberFit",
    "LinearFit",
    "Moments",
    "Outputs",
    "Report",
    "TruingWarning",
    "ash",
    "aupr",
    "aupr_out",
    "auroc",
    "benjamini_hochberg",
    "detect",
    "energy",
    "evaluate",
    "fdbd",
    "fit_contrast",
    "fit_direct",
    "fit_robust",
    "fpr_at_tpr",
    "gen",
    "gradnorm",
    "huber",
    "is_out",
    "kl_uniform",
    "knn",
    "load",
    "max_logit",
    "msp",
    "nci",
    "p_values",
    "react",
    "react_clip",
    "sample",
    "save",
    "scale",
    "threads",
    "threshold_at",
    "vim",
]
