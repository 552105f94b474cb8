"""Who plays the user: frozen models, ensembles, personas, Verbalized Sampling, trainable models, populations."""
