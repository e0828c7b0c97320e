// Asks the processor, and the system, which must keep the registers, for instruction sets.
#include "isa_list.h"

#include <cstring>

#if defined(MIRROR_RT_X86)
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(MIRROR_RT_NEON)
#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif
#endif

namespace mirror_rt {
namespace {

#if defined(MIRROR_RT_X86) && !defined(MIRROR_RT_EMULATE)
struct Registers {
  unsigned a, b, c, d;
};

Registers cpuid(unsigned leaf, unsigned part) {
  Registers r{};
#ifdef _MSC_VER
  __cpuidex(reinterpret_cast<int*>(&r), static_cast<int>(leaf), static_cast<int>(part));
#else
  if (__get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d) == 0) return {};
#endif
  return r;
}

/// Returns the kinds of registers that the system keeps: XCR0, if there is one.
unsigned kept_registers() {
  if ((cpuid(1, 0).c >> 27 & 1) == 0) return 0;
#ifdef _MSC_VER
  return static_cast<unsigned>(_xgetbv(0));
#else
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
#endif
}

bool all_of(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

#ifndef MIRROR_RT_EMULATE_TILES
/// Tells whether this process may use tiles, the 8 KB of which Linux keeps for those that ask.
bool tiles_are_granted() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}
#endif
#elif defined(MIRROR_RT_NEON) && defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

}  // namespace

bool processor_has(const char* isa) {
  const auto is = [&](const char* name) { return std::strcmp(isa, name) == 0; };
  if (is("portable")) return true;
#if defined(MIRROR_RT_EMULATE)
  return true;  // compiled for another processor, to test the tiling
#elif defined(MIRROR_RT_X86)
  // The bits are those of Intel's manual, volume 2, CPUID.
  const unsigned kept = kept_registers();
  const Registers first = cpuid(1, 0), seventh = cpuid(7, 0), more = cpuid(7, 1);
  const bool avx2 = all_of(kept, 0x6) && all_of(first.c, 1u << 12 | 1u << 23 | 1u << 29) &&
                    (seventh.b >> 5 & 1) != 0;  // FMA, POPCNT and F16C; AVX2
  const bool avx512 = avx2 && all_of(kept, 0xe6) && all_of(seventh.b, 0xc0030000);  // F DQ BW VL
  const bool vnni = avx512 && (seventh.c >> 11 & 1) != 0;
  if (is("avx2")) return avx2;
  if (is("avx_vnni")) return avx2 && (more.a >> 4 & 1) != 0;
  if (is("avx512")) return avx512;
  if (is("avx512_vnni")) return vnni;
  const bool bf16 = vnni && (more.a >> 5 & 1) != 0;
  if (is("avx512_bf16")) return bf16;
#ifdef MIRROR_RT_EMULATE_TILES
  return is("avx512_amx") && bf16;
#else
  const bool tiles = all_of(kept, 0x60000) && all_of(seventh.d, 0x3400000);  // BF16 TILE INT8
  return is("avx512_amx") && bf16 && tiles && tiles_are_granted();
#endif
#elif defined(MIRROR_RT_NEON) && defined(__APPLE__)
  const bool dot = has_feature("hw.optional.arm.FEAT_DotProd");
  if (is("neon_dot")) return dot;
  return is("neon_i8mm") && dot && has_feature("hw.optional.arm.FEAT_I8MM") &&
         has_feature("hw.optional.arm.FEAT_BF16");
#elif defined(MIRROR_RT_NEON)
  // HWCAP_ASIMDDP, HWCAP2_I8MM and HWCAP2_BF16; the latter two are new to glibc 2.31.
  const bool dot = (getauxval(AT_HWCAP) >> 20 & 1) != 0;
  if (is("neon_dot")) return dot;
  return is("neon_i8mm") && dot && (getauxval(AT_HWCAP2) >> 13 & 3) == 3;
#else
  return false;
#endif
}

}  // namespace mirror_rt
