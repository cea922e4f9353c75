"""Memory for frames: what is held counts, an address has a quarter, and nobody waits for ever."""

from __future__ import annotations

import random

from penstock_frontend.listener.frame_memory import FrameMemory


def test_an_address_has_a_quarter_and_the_rest_is_for_others() -> None:
    memory = FrameMemory(400)
    assert memory.charge("a", 60)
    assert not memory.charge("a", 60)
    assert memory.charge("b", 100)
    memory.release("a", 60)
    # One frame may be larger than that, when there is nothing else.
    assert memory.charge("a", 200)
    assert not memory.charge("c", 150)
    assert memory.charge("c", 150, force=True)


def test_one_frame_of_an_address_goes_beyond_its_quarter_and_one_beyond_the_whole() -> None:
    memory = FrameMemory(400)
    first, second, other = object(), object(), object()
    assert memory.charge("a", 50) and memory.charge("a", 50)
    assert memory.grow("a", 50, first)
    assert not memory.grow("a", 50, second)
    assert memory.grow("a", 200, first)
    assert memory.charge("b", 50)
    assert memory.grow("b", 40, other)
    assert not memory.grow("a", 10, second)
    memory.ended("a", first)
    memory.ended("b", other)
    memory.release("a", 350)
    assert memory.grow("a", 10, second)


def test_frames_that_have_begun_all_end() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    memory = FrameMemory(1000)
    growing: list[tuple[str, list[int], int, object]] = []
    for n in range(40):
        address = f"address {n % 5}"
        if memory.charge(address, 20):
            growing.append((address, [20], rng.randrange(20, 1500), object()))
    rounds = 0
    while growing:
        rounds += 1
        assert rounds < 100_000
        one = rng.choice(growing)
        address, held, whole, frame = one
        if held[0] < whole:
            step = min(held[0], whole - held[0])
            if memory.grow(address, step, frame):
                held[0] += step
        else:
            memory.ended(address, frame)
            memory.release(address, held[0])
            growing.remove(one)
    assert memory.held_bytes == 0
