#include "engine/isa.h"

#include <cstring>

namespace mirror_rt::engine {

extern const Isa k_portable;
#ifdef MIRROR_RT_X86
extern const Isa k_avx2, k_avx512, k_avx512_vnni, k_avx512_bf16;
const Isa* const kIsas[] = {&k_portable,    &k_avx2,        &k_avx512,
                            &k_avx512_vnni, &k_avx512_bf16, nullptr};
#else
const Isa* const kIsas[] = {&k_portable, nullptr};
#endif

const Isa* find_isa(const char* name) {
  const Isa* found = nullptr;
  for (const Isa* const* isa = kIsas; *isa != nullptr; ++isa) {
    const bool asked = *name == '\0' || std::strcmp((*isa)->name, name) == 0;
    if (asked && (*isa)->supported()) found = *isa;
  }
  return found;
}

}  // namespace mirror_rt::engine
