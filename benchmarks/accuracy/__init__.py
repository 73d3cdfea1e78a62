"""How far private answers are from exact kernel sums over real data: ``make bench-accuracy``."""
