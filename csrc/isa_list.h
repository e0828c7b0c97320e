// Chooses among the instruction sets that some functions are compiled for, at run time.
#pragma once

#include <string>
#include <vector>

namespace mirror_rt {

/// Tells whether this processor has an instruction set, by the name of its kernels.
bool processor_has(const char* isa);

/// Returns those of `isas` that this processor has, in their order; the list ends with null.
template <class Isa>
std::vector<const Isa*> supported(const Isa* const* isas) {
  std::vector<const Isa*> found;
  for (; *isas != nullptr; ++isas) {
    if (processor_has((*isas)->name)) found.push_back(*isas);
  }
  return found;
}

template <class Isa>
std::vector<std::string> supported_names(const Isa* const* isas) {
  std::vector<std::string> names;
  for (const Isa* isa : supported(isas)) names.emplace_back(isa->name);
  return names;
}

/// Returns the last of `isas` that this processor has and `chosen` accepts, or null.
template <class Isa, class Chosen>
const Isa* last_supported(const Isa* const* isas, const Chosen& chosen) {
  const Isa* last = nullptr;
  for (const Isa* isa : supported(isas)) last = chosen(*isa) ? isa : last;
  return last;
}

}  // namespace mirror_rt
