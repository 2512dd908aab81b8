"""Every cell of the table, and what its test does: mostly, serve plainly and in the mode of the cell, and compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from options_testing import rejection
from options_testing.cases import Option
from options_testing.engine_options import ENGINE_OPTIONS
from options_testing.modes import MODES, Mode, plain
from options_testing.refusals import REFUSALS, check_refused
from options_testing.request_options import REQUEST_OPTIONS
from options_testing.runs import Run, differences

OPTIONS: dict[str, Option] = {**REQUEST_OPTIONS, **ENGINE_OPTIONS}
"""By row of the table: options that are tested by texts that stay what they are."""
REJECTION = "verification rejection"


def cells() -> dict[tuple[str, str], str]:
    """What is tested: (row, mode) -> works or refused."""
    works = {(row, mode): "works" for row in (*OPTIONS, REJECTION) for mode in MODES}
    return works | dict.fromkeys(REFUSALS, "refused")


def check_cell(row: str, mode: str, *, every_way: bool = False) -> None:
    """Assert what the table says of a cell, in the first way of its mode or in every one."""
    ways = dict(list(MODES[mode].items())[: None if every_way else 1])
    if (row, mode) in REFUSALS:
        check_refused(row, mode)
    elif row == REJECTION:
        rejection.check_works(mode, ways)
    else:
        check_works(row, ways)


@cache
def plain_runs(name: str) -> tuple[Run, Run]:
    """Of an option: served plainly without it and with it."""
    option = OPTIONS[name]
    without = option.without()
    return without, Run(plain(option.setup), option.requests(without))


def check_visible(name: str) -> None:
    """With the option most requests say something else, and what it promises holds."""
    option, (without, run) = OPTIONS[name], plain_runs(name)
    assert len(differences(without.said, run.said)) >= option.min_changed
    assert not any(said.error for said in run.said)
    if option.promise is not None:
        option.promise(run, without)


def check_works(name: str, ways: Mapping[str, Mode]) -> None:
    """Served in these ways, the requests with the option say what they say when served plainly."""
    option, (_, expected) = OPTIONS[name], plain_runs(name)
    for way, mode in ways.items():
        run = Run(mode.change(option.setup), expected.requests)
        assert differences(expected.said, run.said) == {}, way
        assert mode.happened(run), f"{way}: the mode did not happen"


def serve_in_old_slots(name: str) -> tuple[Run, dict[int, str]]:
    """So few sequences at a time that one which comes back may find its own slot as it left it; and what differs."""
    option, (_, expected) = OPTIONS[name], plain_runs(name)
    setup = MODES["preempted"]["with drafts, overlapping"].change(option.setup)
    run = Run(replace(setup, num_blocks=10, options={**setup.options, "max_num_seqs": 2}), expected.requests)
    return run, differences(expected.said, run.said)


def num_old_slots(run: Run) -> int:
    """How often a sequence was computed again in a slot that nobody had used since it left it."""
    last: dict[int, int] = {}
    count = 0
    for record in run.prefill_steps:
        for slot, sequence_id in zip(record.plan.state_slots.tolist(), record.plan.sequence_ids.tolist(), strict=True):
            count += last.get(slot) == sequence_id
            last[slot] = sequence_id
    return count
