// Prints which share of this processor's products the engine's kernels reach on one thread: the
// rate of a product of ROWS x DEPTH x COLUMNS numbers, by default those of a small model, beside
// that of products that wait for nothing.
//
//     K=csrc/engine/kernels_avx512_bf16.cpp
//     AVX512="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16"
//     g++ -std=c++20 -O3 -Icsrc $AVX512 benchmarks/encode/products.cpp $K -o products
//     ./products 126 3072 768
#include <immintrin.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "engine/isa.h"

using namespace mirror_rt::engine;
namespace mirror_rt::engine {
extern const Isa k_avx512_bf16;
}

namespace {

std::int64_t rows = 126, depth = 384, columns = 1536;
constexpr int kSums = 24, kSteps = 2000;
const Isa& isa = k_avx512_bf16;

/// Returns the most calls a second of the processor's time that ten tries reach.
template <class F>
double rate(int calls, const F& f) {
  double best = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const std::clock_t began = std::clock();
    for (int i = 0; i < calls; ++i) f();
    const double spent = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    if (calls / spent > best) best = calls / spent;
  }
  return best;
}

/// Returns the products a second of one instruction, `each` at a time.
template <class V, class F>
double peak(int each, const F& add) {
  const double calls = rate(2000, [&] {
    V sums[kSums] = {}, a = {}, b = {};
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
      for (int i = 0; i < kSums; ++i) {
        sums[i] = add(sums[i], a, b);
        __asm__ volatile("" : "+v"(sums[i]));
      }
    }
  });
  return calls * kSteps * kSums * each;
}

double reached(Precision precision) {
  const std::int64_t bytes = bytes_of(precision),
                     unit = precision == Precision::float32 ? 4 : isa.unit;
  const std::int64_t blocks = blocks_of(depth, isa.block);
  std::vector<char> values(rows * depth * bytes), packed((depth + 64) * columns * bytes);
  std::vector<float> bias(columns), scales(blocks * columns), sums(blocks * columns),
      row_scales(rows * blocks), shifts(rows * blocks), out(rows * columns);
  const Operand a{values.data(), depth, row_scales.data(), shifts.data()};
  const Matrix w{columns / kPanel, depth * bytes / unit, packed.data(),
                 bias.data(),      scales.data(),        sums.data()};
  const Result result{out.data(), columns};
  const double calls = rate(static_cast<int>(1 + 3e9 / (rows * depth * columns)), [&] {
    for (std::int64_t panel = 0; panel < w.panels; ++panel) {
      isa.product(precision, a, w, panel, 0, rows, result);
    }
  });
  return calls * rows * depth * columns;
}

void print(const char* name, double found, double best) {
  std::printf("%s: %.3f of %.0f G products a second\n", name, found / best, best / 1e9);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 4) {
    rows = std::atoll(arguments[1]), depth = std::atoll(arguments[2]);
    columns = std::atoll(arguments[3]);
  }
  print("fp32", reached(Precision::float32), peak<__m512>(16, [](__m512 sum, __m512 a, __m512 b) {
          return _mm512_fmadd_ps(a, b, sum);
        }));
  print("bf16", reached(Precision::bfloat16), peak<__m512>(32, [](__m512 sum, __m512 a, __m512 b) {
          return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
        }));
  print("int8", reached(Precision::int8), peak<__m512i>(64, [](__m512i sum, __m512i a, __m512i b) {
          return _mm512_dpbusd_epi32(sum, a, b);
        }));
}
