import numpy as np
import pytest

from truing.bench.inputs.datasets.folders import class_folders, folder, imagenet

Image = pytest.importorskip("PIL.Image")


def write(path, value=0, size=(8, 6), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode != "RGB" else (value, value, value)).save(path)
    return path


def values(images):
    return [int(images.pictures[row].flat[0]) for row in range(len(images))]


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    write(tmp_path / "b" / "x.png", 3)
    write(tmp_path / "a" / "y.PNG", 2)
    write(tmp_path / "a" / "x.bmp", 1)
    (tmp_path / "a" / "readme.txt").write_text("not a picture")
    assert values(folder(tmp_path)) == [1, 2, 3]
    assert folder(tmp_path).labels is None


@pytest.mark.parametrize(("mode", "value"), [("L", 7), ("RGBA", (7, 7, 7, 255)), ("P", 7)])
def test_images_are_converted_to_rgb(mode, value, tmp_path):
    write(tmp_path / "x.png", value, (8, 6), mode)
    picture = folder(tmp_path).pictures[0]
    assert (picture.shape, picture.dtype) == ((6, 8, 3), np.uint8)


def test_class_folders_are_numbered_in_the_order_of_their_names(tmp_path):
    for label, name in enumerate(["n01440764", "n01443537", "n01484850"]):
        write(tmp_path / name / "ILSVRC2012_val_00000001.JPEG", label)
    (tmp_path / "n01440764" / "second.png").write_bytes((write(tmp_path / "n01443537" / "s.png", 1)).read_bytes())
    (tmp_path / "n01441000").mkdir()  # A class without images counts.
    assert class_folders(tmp_path).labels.tolist() == [0, 0, 2, 2, 3]


def test_imagenet_needs_a_thousand_class_folders_or_a_file_of_labels(tmp_path):
    for number in range(999):
        (tmp_path / f"n{number:08d}").mkdir()
    with pytest.raises(ValueError, match=r"1,000 in total, got 999: .* use a file val\.txt"):
        imagenet(tmp_path)
    write(tmp_path / "n00000999" / "a.png")
    assert imagenet(tmp_path).labels.tolist() == [999]


@pytest.mark.parametrize("place", ["val/val.txt", "val.txt", "labels.txt"])
def test_imagenet_can_be_one_folder_with_a_file_of_labels(place, tmp_path):
    for number in (1, 2):
        write(tmp_path / "val" / f"ILSVRC2012_val_0000000{number}.JPEG", number)
    lines = "ILSVRC2012_val_00000002.JPEG 970\nILSVRC2012_val_00000001.JPEG 65\n"
    (tmp_path / place).write_text(lines)
    images = imagenet(tmp_path / "val")
    assert images.labels.tolist() == [970, 65]
    assert values(images) == [2, 1]
