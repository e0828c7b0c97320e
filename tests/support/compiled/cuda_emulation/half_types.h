// fp16 and bf16 as CUDA has them, converted with round to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace emulation {

inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline std::uint16_t half_of_float(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const float size = std::fabs(value);
  if (size != size) return sign | 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 6.103515625e-5f) {  // subnormal: a multiple of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(size * 16777216.0f));
  }
  const std::uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | static_cast<std::uint16_t>((rounded - (112u << 23)) >> 13);
}

inline float compute_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float size;
  if (exponent == 31) {
    size = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    size = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    size = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -size : size;
}

inline float float_of_half(std::uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> values(1 << 16);
    for (int i = 0; i < 1 << 16; ++i) values[i] = compute_half(static_cast<std::uint16_t>(i));
    return values;
  }();
  return table[bits];
}

}  // namespace emulation

struct __half {
  std::uint16_t bits;
};

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline __half __float2half_rn(float value) { return {emulation::half_of_float(value)}; }
inline float __half2float(__half value) { return emulation::float_of_half(value.bits); }

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (value != value) return {0x7fff};
  const std::uint32_t bits = emulation::bits_of_float(value);
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline float __bfloat162float(__nv_bfloat16 value) {
  return emulation::float_of_bits(static_cast<std::uint32_t>(value.bits) << 16);
}
