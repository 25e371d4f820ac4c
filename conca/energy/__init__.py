"""Landscapes: energies and their algebra, and the chains that walk them.

energy.py       the contract: Score, Energy
closed_form.py  energies that know their slope
compose.py      sums, mixtures, conditions, known coordinates
chain.py        sample, the one loop; Divergence
langevin.py     descent, ula, mala
gaussian.py     a bowl
double_well.py  two valleys
hopfield.py     a memory whose valleys are what it stores
"""

from conca.energy.chain import Divergence, Kernel, sample
from conca.energy.closed_form import ClosedForm
from conca.energy.compose import mixture
from conca.energy.double_well import DoubleWell
from conca.energy.energy import Energy, Score
from conca.energy.gaussian import Gaussian
from conca.energy.hopfield import Hopfield
from conca.energy.langevin import MALA, ULA, Descent, descent, mala, ula

__all__ = [
    "MALA",
    "ULA",
    "ClosedForm",
    "Descent",
    "Divergence",
    "DoubleWell",
    "Energy",
    "Gaussian",
    "Hopfield",
    "Kernel",
    "Score",
    "descent",
    "mala",
    "mixture",
    "sample",
    "ula",
]
