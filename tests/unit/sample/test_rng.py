import ctypes

from hypothesis import given
from hypothesis import strategies as st

from dgpp.sample.rng import draw, splitmix64, uniform

U64 = st.integers(0, 2**64 - 1)


def c_splitmix64(x: int) -> int:
    """The published C function, on C integers."""
    u64 = ctypes.c_uint64
    z = u64(x + 0x9E3779B97F4A7C15).value
    z = u64((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9).value
    z = u64((z ^ (z >> 27)) * 0x94D049BB133111EB).value
    return z ^ (z >> 31)


def test_published_vectors():
    # The first outputs of SplitMix64 from state 0: its state advances by the golden gamma.
    gamma = 0x9E3779B97F4A7C15
    outputs = [splitmix64(n * gamma % 2**64) for n in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(U64)
def test_step_is_the_published_function(x):
    assert splitmix64(x) == c_splitmix64(x)


@given(U64, st.integers(0, 2**32))
def test_draw_and_uniform(seed, counter):
    expected = c_splitmix64(c_splitmix64(counter) ^ seed)
    assert draw(seed, counter) == expected
    assert uniform(seed, counter) == (expected >> 11) / 2**53
    assert 0.0 <= uniform(seed, counter) < 1.0


def test_first_draw_of_seed_zero():
    # step(0) = E220A8397B1DCDAF, xor 0, stepped once more.
    assert draw(0, 0) == c_splitmix64(0xE220A8397B1DCDAF)
