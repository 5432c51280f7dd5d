"""The loop and those who drive it: `Trainer`, `TowerTrainer`, `TrainConfig`, `Callback`.

One file for each kind of trainer; to go from one device to many, a user changes one line. The
high-level call is three lower-level ones that may also be made by hand: `setup_graph`,
`initialize`, `main_loop`.
"""

__all__: list[str] = []
