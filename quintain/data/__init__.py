"""What travels from the acting half to the learning half: specs, rollouts and views of them."""
