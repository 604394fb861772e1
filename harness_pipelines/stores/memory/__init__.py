"""Reference models of the stores: the same contract tests run over them and over the real ones."""
