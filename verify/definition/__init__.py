"""The definition: what a program means, element by element, over any arithmetic.

It shares the typed program and the plan with the array engine, and nothing else, so that it can judge it.
"""

from verify.definition.arithmetic import Arithmetic
from verify.definition.inputs import RowInputs
from verify.definition.scalar import ScalarArithmetic
from verify.definition.walker import Block, Walker, evaluate, evaluate_rows

__all__ = ["Arithmetic", "Block", "RowInputs", "ScalarArithmetic", "Walker", "evaluate", "evaluate_rows"]
