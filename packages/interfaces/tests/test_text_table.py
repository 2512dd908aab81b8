from thalweg.interfaces.text_table import aligned, number_table


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_in_no_blank() -> None:
    assert aligned([["a", "long", "x"], ["longer", "b", ""]], right=[1]) == ["a       long  x", "longer     b"]
    assert aligned([]) == []


def test_columns_without_a_name_have_words_and_others_numbers() -> None:
    assert number_table(["", "seconds"], [["greedy", "0.1"], ["x", "12.5"]]) == (
        "        seconds\ngreedy      0.1\nx          12.5"
    )
