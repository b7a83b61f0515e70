"""Each choice of a request gets its own seed, which no choice of another seed has."""

from __future__ import annotations

from sluiceway.engine.scheduler.seeds import seed_of_choice


def test_first_choice_has_the_seed_itself() -> None:
    assert [seed_of_choice(seed, 0) for seed in (0, 7, -1)] == [0, 7, -1]


def test_choices_of_neighbouring_seeds_have_different_seeds() -> None:
    """The sum of seed and choice would give 1,000 pairs less than half as many seeds."""
    seeds = [seed_of_choice(seed, choice) for seed in range(-10, 10) for choice in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 64 for seed in seeds if seed not in range(-10, 10))


def test_seeds_of_choices_are_the_same_in_every_release() -> None:
    """A change would change every seeded answer with `n`."""
    assert (seed_of_choice(10, 1), seed_of_choice(10, 2)) == (5889816437798168639, 8006290108834668578)


def test_signed_and_unsigned_forms_of_a_seed_give_the_same_choices() -> None:
    assert seed_of_choice(-1, 3) == seed_of_choice((1 << 64) - 1, 3)


def test_every_bit_of_the_seed_counts() -> None:
    seeds = [seed_of_choice(1 << bit, 1) for bit in range(64)]
    assert len({*seeds, seed_of_choice(0, 1)}) == 65
