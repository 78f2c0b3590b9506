"""The ring on paper gives the reference's tables."""

from __future__ import annotations

import pytest

from cabrank.errors import ConfigError
from cabrank.sync.explain import chain_reduce, explain, ring_pictures, sample_gradients

START = """
-0.1776  -10.4762  -19.9037  -31.2003
 0.0823  -10.3284  -20.6617  -30.2549
-0.1322  -10.9773  -20.4698  -30.2835
 0.1597  -10.4902  -19.8841  -29.5041
"""
MIDDLE = """
-0.0679   -31.9437  -39.7879   -31.2003
 0.0823   -42.2722  -60.4496   -61.4552
-0.0499   -10.9773  -80.9194   -91.7387
 0.1098   -21.4675  -19.8841  -121.2428
"""
END = "-0.0679 -42.2722 -80.9194 -121.2428\n" * 4


def test_r4_one_nodes_reduce() -> None:
    assert chain_reduce([5, 3, 2, 1], first=1) == [11, 3, 5, 6]


def test_r5_step_by_step() -> None:
    pictures = list(ring_pictures(sample_gradients(4)))
    assert len(pictures) == 7
    for picture, table in ((pictures[0], START), (pictures[3], MIDDLE), (pictures[6], END)):
        expected = [[float(word) for word in line.split()] for line in table.strip().splitlines()]
        assert [[round(value, 4) for value in row] for row in picture.gradients] == expected


def test_the_text_shows_every_round_the_cost_and_the_plain_reduce() -> None:
    text = explain(4)
    assert text.count("node 3 ") == 7  # once a picture
    assert text.count("from node 3\n") == 6  # node 0's source
    assert "  node 1        0.0823     -42.2722*    -60.4496     -61.4552   sent segment 2, adds segment 1 from" in text
    assert "2·S·(4 - 1)/4 = 1.5·S" in text
    assert "node 0: 11  node 1: 3  node 2: 5  node 3: 6" in text


@pytest.mark.parametrize("nodes", [1, 2, 5, 16])
def test_any_number_of_nodes_ends_with_the_whole_gradient(nodes: int) -> None:
    *_, end = ring_pictures(sample_gradients(nodes))
    for gradient in end.gradients:
        assert gradient == pytest.approx([-0.0679, -42.2722, -80.9194, -121.2428], abs=2e-4)
        assert gradient == end.gradients[0]


@pytest.mark.parametrize("nodes", [0, -1, 17])
def test_a_number_that_cannot_be_drawn(nodes: int) -> None:
    with pytest.raises(ConfigError, match=f"--nodes is {nodes}"):
        explain(nodes)
