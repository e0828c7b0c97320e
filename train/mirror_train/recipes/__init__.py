"""The hyper-parameters of tuning as recipes, each in a TOML file."""
