// One registering function a file of bindings.
#pragma once

#include <pybind11/pybind11.h>

void bind_infonce(pybind11::module_& m);
