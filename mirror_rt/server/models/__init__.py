"""Hold the models that are served: names, schedulers, hot reload."""
