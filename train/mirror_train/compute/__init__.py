"""The devices, the precision, the processes and the random state that training computes with."""
