"""The jobs: train, evaluate, compare, imitate. One file each, readable top to bottom."""
