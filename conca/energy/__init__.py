"""Landscapes: energies and their algebra, and the chains that walk them.

energy.py       the contract: Score, Energy
closed_form.py  energies that know their slope
compose.py      sums, mixtures, conditions, known coordinates
chain.py        sample, the one loop, and Chains, which goes on; Divergence
draws.py        what kernels share
langevin.py     descent, ula, mala
sgld.py         noisy descent at a temperature of its own
hmc.py          Hamiltonian Monte Carlo
gibbs.py        coordinate by coordinate
tempering.py    chains at several temperatures that change places
anneal.py       a walk over a path of landscapes
buffer.py       where chains of earlier updates ended
losses.py       contrastive divergence, jem, noise contrast, margins
score_matching.py  training by slopes, without chains
recipes.py      settings by paper
diagnostics.py  whether chains can be believed
exact.py        log Z on a grid, by enumeration, by annealed importance sampling
novelty.py      how strange a sample is to a classifier
attack.py       small changes by which a class is lost
gaussian.py     a bowl
double_well.py  two valleys
gaussian_mixture.py  many bowls at once
rings.py        valleys that are curves
hopfield.py     a memory whose valleys are what it stores
network.py      a network as an energy; the check that its rows do not interact
classifier.py   a classifier as an energy
images.py       networks of images as energies, or as what tells the noise
schedule.py     noise levels of a diffusion
diffusion.py    what tells the noise as a slope, or as an energy, at each level
reverse.py      from noise to data: ancestral, implicit, annealed; correctors
denoiser.py     a denoiser as a slope, or as an energy, at each noise level
"""

from conca.energy.anneal import anneal
from conca.energy.attack import pgd
from conca.energy.buffer import ReplayBuffer
from conca.energy.chain import Chains, Divergence, Kernel, sample
from conca.energy.classifier import ClassifierEnergy
from conca.energy.closed_form import ClosedForm
from conca.energy.compose import mixture
from conca.energy.denoiser import DenoiserEnergy, DenoiserScore
from conca.energy.diagnostics import acceptance, effective_sample_size, energy_gap, nested_rhat, split_rhat
from conca.energy.diffusion import NoiseEnergy, NoiseScore, noise_loss
from conca.energy.double_well import DoubleWell
from conca.energy.energy import Energy, Score
from conca.energy.exact import ais, log_z_enumerate, log_z_grid
from conca.energy.gaussian import Gaussian
from conca.energy.gaussian_mixture import GaussianMixture
from conca.energy.gibbs import Gibbs, Redraws, gibbs
from conca.energy.hmc import HMC, hmc
from conca.energy.hopfield import Hopfield
from conca.energy.langevin import MALA, ULA, Descent, descent, mala, ula
from conca.energy.losses import contrastive_divergence, energy_margin, jem, margins, noise_contrastive
from conca.energy.network import NetworkEnergy, rows_apart
from conca.energy.novelty import energy_score, fit_temperature, max_logit_score, max_softmax_score, novelty
from conca.energy.recipes import Recipe, anatomy, generative_convnet, igebm, improved_cd, jem_recipe, short_run
from conca.energy.reverse import DDIM, DDPM, Reverse, ddim, ddpm, reverse_diffusion
from conca.energy.rings import Rings
from conca.energy.schedule import Schedule
from conca.energy.score_matching import denoising_score_matching, sliced_score_matching
from conca.energy.sgld import SGLD, sgld
from conca.energy.tempering import Tempering, tempering

__all__ = [
    "DDIM",
    "DDPM",
    "HMC",
    "MALA",
    "SGLD",
    "ULA",
    "Chains",
    "ClassifierEnergy",
    "ClosedForm",
    "DenoiserEnergy",
    "DenoiserScore",
    "Descent",
    "Divergence",
    "DoubleWell",
    "Energy",
    "Gaussian",
    "GaussianMixture",
    "Gibbs",
    "Hopfield",
    "Kernel",
    "NetworkEnergy",
    "NoiseEnergy",
    "NoiseScore",
    "Recipe",
    "Redraws",
    "ReplayBuffer",
    "Reverse",
    "Rings",
    "Schedule",
    "Score",
    "Tempering",
    "acceptance",
    "ais",
    "anatomy",
    "anneal",
    "contrastive_divergence",
    "ddim",
    "ddpm",
    "denoising_score_matching",
    "descent",
    "effective_sample_size",
    "energy_gap",
    "energy_margin",
    "energy_score",
    "fit_temperature",
    "generative_convnet",
    "gibbs",
    "hmc",
    "igebm",
    "improved_cd",
    "jem",
    "jem_recipe",
    "log_z_enumerate",
    "log_z_grid",
    "mala",
    "margins",
    "max_logit_score",
    "max_softmax_score",
    "mixture",
    "nested_rhat",
    "noise_contrastive",
    "noise_loss",
    "novelty",
    "pgd",
    "reverse_diffusion",
    "rows_apart",
    "sample",
    "sgld",
    "short_run",
    "sliced_score_matching",
    "split_rhat",
    "tempering",
    "ula",
]
