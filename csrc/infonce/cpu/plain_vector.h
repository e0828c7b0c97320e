// The vectors of vector.h as a class, for compilers without the extensions of GCC and Clang.
#pragma once

#include <cstdint>
#include <cstring>

#include "infonce/cpu/isa.h"

namespace mirror_rt::infonce {
namespace {

/// The results of a comparison, one a lane.
struct Lanes {
  bool holds[kLanes];
};

struct Vec {
  float lanes[kLanes];

  float operator[](int lane) const { return lanes[lane]; }
  Vec& operator+=(const Vec& other) { return *this = *this + other; }

  template <class Function>
  static Vec of(const Function& function) {
    Vec made;
    for (int lane = 0; lane < kLanes; ++lane) made.lanes[lane] = function(lane);
    return made;
  }
  static Vec filled(float x) {
    return of([x](int) { return x; });
  }

  friend Vec operator+(const Vec& a, const Vec& b) {
    return of([&](int lane) { return a[lane] + b[lane]; });
  }
  friend Vec operator-(const Vec& a, const Vec& b) {
    return of([&](int lane) { return a[lane] - b[lane]; });
  }
  friend Vec operator*(const Vec& a, const Vec& b) {
    return of([&](int lane) { return a[lane] * b[lane]; });
  }
  friend Vec operator+(const Vec& a, float b) { return a + filled(b); }
  friend Vec operator-(const Vec& a, float b) { return a - filled(b); }
  friend Vec operator-(float a, const Vec& b) { return filled(a) - b; }
  friend Vec operator*(const Vec& a, float b) { return a * filled(b); }
  friend Lanes operator>(const Vec& a, const Vec& b) {
    Lanes found;
    for (int lane = 0; lane < kLanes; ++lane) found.holds[lane] = a[lane] > b[lane];
    return found;
  }
  friend Lanes operator<(const Vec& a, float b) { return filled(b) > a; }
};

inline Vec load(const float* p) {
  Vec x;
  std::memcpy(x.lanes, p, sizeof x.lanes);
  return x;
}
inline void store(float* p, const Vec& x) { std::memcpy(p, x.lanes, sizeof x.lanes); }

inline Vec where(const Lanes& condition, const Vec& a, const Vec& b) {
  return Vec::of([&](int lane) { return condition.holds[lane] ? a[lane] : b[lane]; });
}

/// Returns 2^n for each biased = n + 1.5 * 2^23.
inline Vec power_of_two(const Vec& biased) {
  return Vec::of([&](int lane) {
    std::uint32_t bits;
    std::memcpy(&bits, &biased.lanes[lane], sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
  });
}

/// Returns the dot product of unaligned rows, in float64, as long rows' norms overflow float32.
inline double dot(const float* x, const float* y, std::int64_t n) {
  double sums[4] = {};
  for (std::int64_t i = 0; i < n; ++i) sums[i % 4] += double{x[i]} * y[i];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace
}  // namespace mirror_rt::infonce
