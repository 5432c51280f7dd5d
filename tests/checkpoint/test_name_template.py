import pytest

from towerpack.checkpoint.name_template import NameTemplate


def test_values_are_formatted_as_by_format():
    template = NameTemplate("{epoch:03d}-{val/error:.3f}-{step}")
    assert template.scalars == ["val/error"]
    assert template.fill({"epoch": 7, "step": 90, "val/error": -0.00049}) == "007--0.000-90"
    assert NameTemplate("{error!s:.4}").fill({"error": 0.123456}) == "0.12"
    assert NameTemplate("model-{step}").fill({"step": 3, "epoch": 1}) == "model-3"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{epoch", "expected '}'"),
        ("{}-{epoch}", "a name in each pair of braces"),
        ("a/{epoch}", "it has '/'; use checkpoint_dir"),
        ("a:{epoch}", "it has ':'"),
        ("a[{epoch}]", r"it has '\['"),
        ("a*", r"it has '\*'"),
        (".{epoch}", "it has '.'"),
        ("{epoch}.", "it has '.'"),
        ("{error: .3f}", "it has ' '"),
        ("{epoch:x<3}", None),
        ("{error:/>9}", "it has '/'"),
        ("", "is not a name of its own"),
        ("checkpoint", "is not a name of its own"),
        ("{epoch}.index", "is not a name of its own"),
        ("{error:.3d}", "expected a format for numbers"),
        ("model-{epoch}", "the number in 'model-1' stands for the step"),
    ],
)
def test_what_is_no_name_of_a_file_is_refused(text, problem):
    if problem is None:
        assert NameTemplate(text).fill({"epoch": 3}) == "3xx"
        return
    with pytest.raises(ValueError, match=problem):
        NameTemplate(text)
