// Reads rows of any dtype; shared by the two halves of the CPU implementation.
#pragma once

#include "infonce/infonce.h"

namespace mirror_rt::infonce {

/// Writes row `i` in float32, times its inverse norm, as `rows.dim` floats to `out`.
void unit_row(const Rows& rows, std::int64_t i, float* out);

}  // namespace mirror_rt::infonce
