#include "infonce/cpu/isa.h"

#include <cstring>

#include "isa_list.h"

namespace mirror_rt::infonce {

extern const Isa k_portable;
#ifdef MIRROR_RT_X86
extern const Isa k_avx2, k_avx512, k_avx512_bf16;
const Isa* const kIsas[] = {&k_portable, &k_avx2, &k_avx512, &k_avx512_bf16, nullptr};
#else
const Isa* const kIsas[] = {&k_portable, nullptr};
#endif

const Isa* find_isa(const char* name) {
  return last_supported(kIsas, [&](const Isa& isa) { return std::strcmp(isa.name, name) == 0; });
}

const Isa* best_isa(bool pairs) {
  return last_supported(kIsas, [&](const Isa& isa) { return (isa.pair == 2) == pairs; });
}

}  // namespace mirror_rt::infonce
