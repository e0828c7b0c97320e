// The functions that register the bindings, one for each file.
#pragma once

#include <pybind11/pybind11.h>

void bind_engine(pybind11::module_& m);
void bind_infonce(pybind11::module_& m);
void bind_vector_ops(pybind11::module_& m);
void bind_words(pybind11::module_& m);
