#include "engine/isa.h"

#include <cstring>

#include "isa_list.h"

namespace mirror_rt::engine {

extern const Isa k_portable, k_avx2, k_avx_vnni, k_avx512, k_avx512_vnni, k_avx512_bf16,
    k_avx512_amx;
extern const Isa k_neon_dot, k_neon_i8mm;
const Isa* const kIsas[] = {&k_portable,
#if defined(MIRROR_RT_X86)
                            &k_avx2,        &k_avx_vnni,    &k_avx512,
                            &k_avx512_vnni, &k_avx512_bf16, &k_avx512_amx,
#elif defined(MIRROR_RT_NEON)
                            &k_neon_dot, &k_neon_i8mm,
#endif
                            nullptr};

const Isa* find_isa(const char* name) {
  return last_supported(
      kIsas, [&](const Isa& isa) { return *name == '\0' || std::strcmp(isa.name, name) == 0; });
}

}  // namespace mirror_rt::engine
