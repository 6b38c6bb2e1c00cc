"""The rivals, each with both its halves: what the server decides, and what a device does.

AdaViT, FedMeZO, FedPM, PLATON, PruneFL and Q-ViT; HeteroFL and FedRolex with its official slices; RA-Fed and RAM-Fed;
FeDepth, FedRA and the progressive chain. They are methods as a user would write them: registered by entry points
(`cos2p.methods` in pyproject.toml) and built on the public names of `cos2p` and `cos2p.methods` alone. Nothing in
`cos2p` imports from here.

`leading`, `segments`, `segment_reports`, `side_tensors` and `sizes` are what several have in common.
"""
