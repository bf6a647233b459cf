from truing.bench.experiments.cases import CASES
from truing.bench.report.paper import printed


def test_numbers_of_the_paper_are_found_by_the_names_of_truing():
    assert printed(CASES["table"], "CIFAR-100", "msp", "RLR").fpr95 == 0.4373
    assert printed(CASES["online"], "CIFAR-10", "energy", "Online DLR").auroc == 0.9489
    assert printed(CASES["batch-size"], "CIFAR-10", "msp", "Online DLR", batch=512).fpr95 == 0.1453
    assert printed(CASES["table"], "ImageNet-1k", "odin", "none", "Textures").auroc == 0.763
    assert printed(CASES["react"], "ImageNet-1k", "odin", "ReAct + DLR, raw").fpr95 == 0.4885
    assert printed(CASES["noise"], "ImageNet-1k", "msp", "DLR", "gaussian").auroc == 0.9934
    assert printed(CASES["classical"], "CIFAR-10", "gmm-10", "none").fpr95 == 0.877


def test_numbers_that_the_paper_does_not_have_are_none():
    assert printed(CASES["kept-share"], "CIFAR-100", "msp", "RLR") is None
    assert printed(CASES["table"], "CIFAR-10", "msp", "DLR", "svhn-recropped") is None
    assert printed(CASES["noise"], "CIFAR-10", "msp", "DLR", "gaussian") is None


def test_the_misprint_of_the_paper_has_a_note():
    """The AUROC of ODIN + DLR on SUN repeats the value of iNaturalist, so the average does not agree."""
    assert "misprint" in printed(CASES["table"], "ImageNet-1k", "odin", "DLR", "SUN").note
