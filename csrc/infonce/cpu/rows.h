// Reading rows of any dtype; shared by the two halves of the CPU implementation.
#pragma once

#include "infonce/infonce.h"

namespace mirror_rt::infonce {

/// Row `i` in float32, times its inverse norm: `rows.dim` floats.
void unit_row(const Rows& rows, std::int64_t i, float* out);

}  // namespace mirror_rt::infonce
