// As engine_check.cpp, for the kernels of tiles alone, beside those that differ from them in
// products of bfloat16 and int8.
#include "engine/isa.h"

namespace mirror_rt::engine {
extern const Isa k_avx512_vnni, k_avx512_amx;
const Isa* const kIsas[] = {&k_avx512_vnni, &k_avx512_amx, nullptr};
}  // namespace mirror_rt::engine

#define MIRROR_RT_CHECK_INNER 300  // more than a block that has a scale in int8
#include "engine_check.cpp"
