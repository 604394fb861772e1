"""The peers of the layout bench are what their names say, and the metric counts what a reader would open."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harness_pipelines_tests.bench.layout_data import Dataset, Queries, clusters_2d, events_3d, queries
from harness_pipelines_tests.bench.layout_peers import (
    Comparison,
    Layout,
    against_goals,
    arrival,
    compare,
    file_boxes,
    geomean,
    hilbert,
    hilbert_rank,
    kd,
    main,
    ours,
    peers,
    sort,
    touched_rows,
    zorder,
    zorder_words,
)

SIGN, ALL = 1 << 63, (1 << 64) - 1


def a_table(*columns: np.ndarray, types: tuple[str, ...] | None = None) -> Dataset:
    names = tuple(f"c{at}" for at in range(len(columns)))
    of = types or tuple("double" if column.dtype.kind == "f" else "long" for column in columns)
    return Dataset(name="table", names=names, types=of, columns=columns)


# The metric

VALUES = st.integers(-5, 5)


@given(st.data(), st.integers(1, 3), st.integers(1, 40), st.integers(1, 12))
def test_touched_rows_agree_with_counting_file_by_file(draw, d, rows, asked):
    def ints(shape: tuple[int, ...]) -> np.ndarray:
        drawn: np.ndarray = draw.draw(arrays.arrays(np.int64, shape, elements=VALUES))
        return drawn

    data = a_table(*ints((d, rows)))
    files = np.abs(ints((rows,)))
    corners = ints((2, asked, d)).astype(float)
    corners[0][corners[0] == -5], corners[1][corners[1] == 5] = -np.inf, np.inf
    boxes = Queries(corners[0], corners[1])

    expected = []
    for low, high in zip(boxes.low, boxes.high, strict=True):
        count = 0
        for file in set(files.tolist()):
            of_file = [column[files == file] for column in data.columns]
            meets = [lo <= v.max() and hi >= v.min() for v, lo, hi in zip(of_file, low, high, strict=True)]
            count += len(of_file[0]) if all(meets) else 0
        expected.append(count)
    assert touched_rows(data, files, boxes).tolist() == expected


def test_a_layout_may_prune_files_by_more_than_minima_and_maxima():
    data = a_table(np.arange(10))
    asked = Queries(np.array([[0.0]]), np.array([[9.0]]))
    only_the_second = Layout(file_of_row=arrival(data, 5), meets=lambda _: np.array([[False, True]]))

    assert touched_rows(data, arrival(data, 5), asked).tolist() == [10]
    assert touched_rows(data, only_the_second, asked).tolist() == [5]


def test_bounds_of_files_are_tight_and_empty_files_meet_nothing():
    data = a_table(np.array([3, 1, 9, 4]), np.array([0.5, 2.5, -1.0, 7.0]))
    boxes = file_boxes(data, np.array([0, 0, 2, 2]))

    assert boxes.low[[0, 2]].tolist() == [[1, 0.5], [4, -1.0]]
    assert boxes.high[[0, 2]].tolist() == [[3, 2.5], [9, 7.0]]
    assert boxes.rows.tolist() == [2, 0, 2]
    assert touched_rows(data, np.array([0, 0, 2, 2]), Queries(np.full((1, 2), -np.inf), np.full((1, 2), np.inf))) == [4]


def test_the_geometric_mean_counts_a_query_without_files_as_one_row():
    assert geomean([100, 10_000]) == pytest.approx(1_000)
    assert geomean([0, 100]) == pytest.approx(10)


# Iceberg's zorder


def image_of(value: float | int, of_type: str) -> int:
    """The 8 bytes that ZOrderByteUtils writes, one value at a time."""
    if of_type == "double":
        bits: int = struct.unpack(">q", struct.pack(">d", value))[0]
        return (bits ^ ((bits >> 31) | -SIGN)) & ALL
    return ((int(value) // 1_000_000 if of_type == "timestamptz" else int(value)) & ALL) ^ SIGN


def interleaved(images: list[int]) -> int:
    """Bit by bit from the highest, the first column first."""
    found = 0
    for bit in range(63, -1, -1):
        for image in images:
            found = found << 1 | image >> bit & 1
    return found


LONGS = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats(allow_nan=False)
CELL = {"long": LONGS, "timestamptz": LONGS, "date": st.integers(-(2**31), 2**31 - 1), "double": DOUBLES}


@given(st.data(), st.lists(st.sampled_from(sorted(CELL)), min_size=1, max_size=4))
def test_zorder_sorts_as_the_bytes_of_the_reference_do(draw, types):
    rows = draw.draw(st.lists(st.tuples(*(CELL[of] for of in types)), min_size=1, max_size=20))
    columns = [np.array([row[c] for row in rows], float if of == "double" else np.int64) for c, of in enumerate(types)]
    data = a_table(*columns, types=tuple(types))
    reference = [interleaved([image_of(v, of) for v, of in zip(row, types, strict=True)]) for row in rows]

    by_reference = sorted(range(len(rows)), key=reference.__getitem__)
    order = np.lexsort(zorder_words(data)[::-1])
    assert order.tolist() == by_reference


def test_one_column_in_zorder_is_in_the_order_of_its_values():
    doubles = np.array([-np.inf, -1e300, -2.5, -0.0, 0.0, 1e-300, 2.5, np.inf, np.nan])
    longs = np.array([-(2**63), -7, 0, 3, 2**63 - 1])

    assert zorder(a_table(doubles), 1).tolist() == list(range(9))
    assert zorder(a_table(longs), 1).tolist() == list(range(5))


def test_negative_doubles_that_differ_in_their_last_bit_only_change_places_as_in_iceberg():
    below, one = np.nextafter(-1.0, -2.0), -1.0

    assert image_of(below, "double") > image_of(one, "double")
    assert zorder(a_table(np.array([below, one])), 1).tolist() == [1, 0]


# The other peers


def test_arrival_keeps_rows_as_they_came():
    assert arrival(a_table(np.array([5, 1, 4, 2, 3])), 2).tolist() == [0, 0, 1, 1, 2]


def test_sort_orders_by_the_first_column_and_then_by_the_second():
    data = a_table(np.array([2, 1, 2, 1]), np.array([0.0, 9.0, -1.0, 3.0]))

    assert sort(data, 1).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(("columns", "bits"), [(1, 4), (2, 3), (3, 3), (4, 2)])
def test_the_hilbert_curve_visits_each_cell_once_and_steps_to_a_neighbour(columns, bits):
    cells = np.stack(np.meshgrid(*[np.arange(1 << bits)] * columns, indexing="ij")).reshape(columns, -1)
    rank = hilbert_rank(list(cells), bits)
    steps = np.diff(cells[:, np.argsort(rank)], axis=1)

    assert np.array_equal(np.sort(rank), np.arange(cells.shape[1]))
    assert (np.abs(steps).sum(axis=0) == 1).all()


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_kd_files_are_even_and_all_there_even_with_equal_keys(rows, files, columns, seed):
    rng = np.random.default_rng(seed)
    data = a_table(*(rng.integers(0, 4, rows) for _ in range(columns)))
    sizes = np.bincount(kd(data, files))

    assert len(sizes) == min(files, rows)
    assert sizes.max() - sizes.min() <= 1


def test_kd_with_judges_is_no_worse_than_with_its_own_rule():
    data = clusters_2d(5_000, 1)
    judges = list(queries(data, 2, per_class=30).values())

    def cost(layout: np.ndarray) -> float:
        return float(np.prod([geomean(touched_rows(data, layout, one)) for one in judges]))

    assert cost(kd(data, 32, judges=judges)) <= cost(kd(data, 32))


def test_clustered_layouts_read_less_than_arrival_and_kd_reads_least():
    data = events_3d(10_000, 1)
    classes = queries(data, 2, per_class=30)
    found = compare(data, classes, peers(data, classes, files=50, seed=1))

    assert found.ratio("kd", "hilbert") < 1
    assert found.ratio("hilbert", "iceberg zorder", "mixed") < 1
    assert found.ratio("otree quantile rolled up", "otree linear") < 1
    assert found.files["iceberg zorder"] == found.files["kd"] == 50


@pytest.mark.parametrize("layout", [sort, zorder, hilbert])
def test_orders_are_cut_into_files_of_equal_rows(layout):
    assert np.bincount(layout(clusters_2d(1_050, 1), 100)).tolist() == [100] * 10 + [50]


def test_further_layouts_are_compared_under_their_own_name():
    data = clusters_2d(2_000, 1)
    classes = queries(data, 2, per_class=10)
    found = compare(data, classes, {"mine": arrival(data, 2_000), "arrival": arrival(data, 100)})

    assert found.ratio("mine", "arrival", "mixed") >= 1
    assert "mine" in found.text()


def test_a_goal_is_met_up_to_its_ratio_and_missed_above():
    rows = {"ours": 75.0, "hilbert": 100.0, "kd": 60.0, "iceberg zorder": 300.0} | {
        f"otree {flavour}{rolled}": 100.0 for flavour in ("linear", "quantile") for rolled in ("", " rolled up")
    }
    found = Comparison(
        data="events 3-D",
        rows=1_000,
        cells={name: {"slab 1 %": read, "mixed": read} for name, read in rows.items()},
        files=dict.fromkeys(rows, 10),
        spread=dict.fromkeys(rows, (1.0, 1.0)),
    )
    verdicts = {line.split(" / ")[1].split("  ")[0]: line.rsplit(" ", 1)[1] for line in against_goals(found)}

    assert verdicts["otree linear"] == "met"
    assert verdicts["kd"] == "missed"
    assert [v for name, v in verdicts.items() if name.startswith("iceberg zorder, mixed")] == ["met"]


def test_ours_gives_each_row_a_file_of_about_the_asked_size():
    sizes = np.bincount(ours(clusters_2d(5_000, 1), 50))

    assert sizes.sum() == 5_000
    assert len(sizes) == pytest.approx(50, rel=0.1)
    assert sizes.max() <= 1.5 * 100


def test_the_command_prints_a_table_for_each_data_set(capsys):
    main(["--rows", "1000", "--files", "10"])

    printed = capsys.readouterr().out
    assert all(name in printed for name in ("clusters 2-D", "events 3-D", "lineitem", "iceberg zorder", "kd"))
