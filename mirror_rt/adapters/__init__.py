"""Encoders as other libraries want them: one module a library, which imports it.

Each is the library's own interface over `mirror_rt.Encoder`. Importing this package imports none
of the libraries; importing a module of it whose library is absent is a MissingDependencyError.
"""
