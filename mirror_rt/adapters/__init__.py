"""Adapt encoders to the interfaces of other libraries, in one module per library.

Each adapter implements the library's own interface with `mirror_rt.Encoder`. Importing this package
imports none of the libraries; importing a module whose library is absent raises
MissingDependencyError.
"""
