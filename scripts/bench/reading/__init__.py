"""The parts of scripts/bench/read.py: what is read, by whom, and how their figures are told."""
