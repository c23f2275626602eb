"""Certificates: what several backends make of one input, established without the emulator.

Outputs and the values before their last rounding are replayed in exact integers (`search.exact`), over a partition of
its own, and compared with each other and with the exact answer. Nothing of the array engine takes part; the typed
program and the generic walker of `verify.definition` do. What is counted is a rational number, kept as ``"num/den"``,
a bit pattern, kept as hexadecimal, or an interval of decimals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from search.exact.dyadic import Number, index, place, to_bits, to_fraction
from search.exact.enclosure import Answer, Attention, Interval, Status, outward
from search.exact.margins import Margins, margins
from search.exact.replay import Replay, Row, exact_scores, replay
from search.exact.arithmetic import ExactArithmetic
from search.exact.inputs import row_of
from search.sides import Side
from specs.errors import InputError

FORMAT = "ulpscope certificate 1"
