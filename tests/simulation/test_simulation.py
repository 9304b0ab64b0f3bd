from tests.simulation.simulation import Simulation
import pytest

@pytest.mark.parametrize("seed", range(20))
def test_seed(seed):
    s = Simulation(seed)
    s.run()
    print(seed, s.weather, dict(s.world.counts), dict(s.errors), s.world.steps)
