#include "infonce/cpu/isa.h"

#include <cstring>

namespace mirror_rt::infonce {

extern const Isa k_portable;
#ifdef MIRROR_RT_X86
extern const Isa k_avx2, k_avx512, k_avx512_bf16;
const Isa* const kIsas[] = {&k_portable, &k_avx2, &k_avx512, &k_avx512_bf16, nullptr};
#else
const Isa* const kIsas[] = {&k_portable, nullptr};
#endif

const Isa* find_isa(const char* name) {
  for (const Isa* const* isa = kIsas; *isa != nullptr; ++isa) {
    if (std::strcmp((*isa)->name, name) == 0 && (*isa)->supported()) return *isa;
  }
  return nullptr;
}

const Isa* best_isa(bool pairs) {
  const Isa* best = nullptr;
  for (const Isa* const* isa = kIsas; *isa != nullptr; ++isa) {
    if (((*isa)->pair == 2) == pairs && (*isa)->supported()) best = *isa;
  }
  return best;
}

}  // namespace mirror_rt::infonce
