"""A script's command line: what is wrong with it or its machine is one line and exit status 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from dgpp.cli.numbers import MOST, number, whole_numbers
from dgpp.errors import ConfigError, DgppError
from kernels_numba.gpu.errors import CudaError


class Options(argparse.ArgumentParser):
    """A parser of options that raises ConfigError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; see --help")

    def add_numbers(self, flag: str, default: str, most: int = MOST) -> None:
        """An option of whole numbers in 1..most, separated by commas."""
        self.add_argument(flag, default=default, type=partial(whole_numbers, flag, most=most))

    def add_number(self, flag: str, default: int, most: int = MOST) -> None:
        """An option of one whole number in 1..most."""
        self.add_argument(flag, default=default, type=partial(number, flag, least=1, most=most))

    def add_names(self, flag: str, default: str, known: Sequence[str]) -> None:
        """An option of names out of `known`, separated by commas."""
        self.add_argument(flag, default=default, type=partial(_names, flag, known))


def _names(flag: str, known: Sequence[str], text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag}: {name[:24]!r} is not one of {', '.join(known)}")
    return names


def need(*modules: str) -> None:
    """Raise ConfigError where one of `modules`, which are named as their packages, is absent."""
    for module in modules:
        if find_spec(module) is None:
            raise ConfigError(f"{module} is not installed: pip install {' '.join(modules)}")


def ended(main: Callable[[], object]) -> NoReturn:
    """Run `main` as this process's script and exit as it ends: as `dgpp` does for errors that have
    names, with the status that it returns otherwise."""
    try:
        status = main()
    except (DgppError, CudaError, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: error: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
