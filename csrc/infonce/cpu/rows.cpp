// The steps that cost O(rows * D): the norms, the objective, and the gradient of the input.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "infonce/cpu/packing.h"
#include "parallel.h"

namespace mirror_rt::infonce {
namespace {

constexpr double kShortest = 1e-12;  // rows shorter than this are divided by it
constexpr std::int64_t kRowsOfChunk =
    64;  // work of one thread at a time; fixes the summation order

template <class To, class From>
To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

// Both conversions follow Maratyszcza's FP16 library: exact, ties to even, no branches.
float from_half(std::uint16_t h) {
  const std::uint32_t w = std::uint32_t{h} << 16, doubled = w + w;
  const float normal = bit_cast<float>((doubled >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  const float subnormal = bit_cast<float>((doubled >> 17) | (126u << 23)) - 0.5f;
  const float magnitude = doubled < (1u << 27) ? subnormal : normal;
  return bit_cast<float>((w & 0x80000000u) | bit_cast<std::uint32_t>(magnitude));
}

std::uint16_t to_half(float f) {
  const std::uint32_t w = bit_cast<std::uint32_t>(f), doubled = w + w;
  const std::uint32_t bias = std::max(doubled & 0xFF000000u, 0x71000000u);
  const float scaled = (std::fabs(f) * 0x1.0p+112f) * 0x1.0p-110f;
  const std::uint32_t bits =
      bit_cast<std::uint32_t>(bit_cast<float>((bias >> 1) + 0x07800000u) + scaled);
  const std::uint32_t magnitude = ((bits >> 13) & 0x7C00u) + (bits & 0x0FFFu);
  return static_cast<std::uint16_t>((w & 0x80000000u) >> 16 |
                                    (doubled > 0xFF000000u ? 0x7E00u : magnitude));
}

float from_bfloat16(std::uint16_t b) { return bit_cast<float>(std::uint32_t{b} << 16); }

std::uint16_t to_bfloat16(float f) {
  if (f != f) return 0x7fc0;
  const std::uint32_t bits = bit_cast<std::uint32_t>(f);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void widen(const void* source, Dtype dtype, std::int64_t n, float* out) {
  const auto* half = static_cast<const std::uint16_t*>(source);
  if (dtype == Dtype::float32) {
    std::copy_n(static_cast<const float*>(source), n, out);
  } else if (dtype == Dtype::float16) {
    std::transform(half, half + n, out, from_half);
  } else {
    std::transform(half, half + n, out, from_bfloat16);
  }
}

void narrow(const float* source, Dtype dtype, std::int64_t n, void* out) {
  auto* half = static_cast<std::uint16_t*>(out);
  if (dtype == Dtype::float32) {
    std::copy_n(source, n, static_cast<float*>(out));
  } else if (dtype == Dtype::float16) {
    std::transform(source, source + n, half, to_half);
  } else {
    std::transform(source, source + n, half, to_bfloat16);
  }
}

/// Returns the block of row `i` and the row's offset in it, in bytes.
std::pair<std::size_t, std::int64_t> locate(const Rows& rows, std::int64_t i) {
  std::size_t block = 0;
  while (i >= rows.blocks[block].rows) i -= rows.blocks[block++].rows;
  return {block, i * rows.dim * (rows.dtype == Dtype::float32 ? 4 : 2)};
}

void read_row(const Rows& rows, std::int64_t i, float* out) {
  const auto [block, offset] = locate(rows, i);
  widen(static_cast<const char*>(rows.blocks[block].data) + offset, rows.dtype, rows.dim, out);
}

double softplus(double u) { return std::max(u, 0.0) + std::log1p(std::exp(-std::fabs(u))); }

std::int64_t chunks(std::int64_t rows) { return (rows + kRowsOfChunk - 1) / kRowsOfChunk; }

/// Calls body(first row, end row, chunk) for chunks of rows, on up to `threads` threads.
template <class Body>
void for_row_chunks(std::int64_t rows, int threads, const Body& body) {
  parallel_for(chunks(rows), threads, [&](std::int64_t chunk, int) {
    body(chunk * kRowsOfChunk, std::min(rows, (chunk + 1) * kRowsOfChunk), chunk);
  });
}

}  // namespace

std::int64_t Rows::count() const {
  std::int64_t total = 0;
  for (const Block& block : blocks) total += block.rows;
  return total;
}

void unit_row(const Rows& rows, std::int64_t i, float* out) {
  read_row(rows, i, out);
  for (std::int64_t d = 0; d < rows.dim; ++d) out[d] *= rows.inverse_norms[i];
}

void inverse_norms(const Rows& rows, const Execution& run, float* out) {
  for_row_chunks(
      rows.count(), run.threads, [&](std::int64_t first, std::int64_t last, std::int64_t) {
        std::vector<float> x(rows.dim);
        for (std::int64_t i = first; i < last; ++i) {
          read_row(rows, i, x.data());
          const double norm = std::sqrt(run.isa->dot(x.data(), x.data(), rows.dim));
          out[i] = static_cast<float>(1 / (norm < kShortest ? kShortest : norm));  // NaN stays NaN
        }
      });
}

double objective(const Rows& rows, const Rows& partners, const Pairs& pairs, const float* n,
                 float scale, bool decoupled, double factor, const Execution& run, float* weights,
                 float* log_weights) {
  std::vector<double> losses(chunks(pairs.count));
  for_row_chunks(pairs.count, run.threads,
                 [&](std::int64_t first, std::int64_t last, std::int64_t c) {
                   std::vector<float> x(rows.dim), y(rows.dim);
                   for (std::int64_t i = first; i < last; ++i) {
                     const std::int64_t p = (i + pairs.shift) % pairs.count;
                     read_row(rows, i, x.data());
                     read_row(partners, p, y.data());
                     const double cosine = run.isa->dot(x.data(), y.data(), rows.dim) *
                                           rows.inverse_norms[i] * partners.inverse_norms[p];
                     const double margin = n[i] - scale * cosine;
                     const double log_g = decoupled ? 0 : -softplus(-margin);
                     const bool alone = n[i] == -std::numeric_limits<float>::infinity();
                     losses[c] += decoupled ? margin : softplus(margin);
                     weights[i] = alone ? 0 : static_cast<float>(std::exp(log_g));
                     log_weights[i] = alone ? n[i] : static_cast<float>(log_g - n[i]);
                   }
                 });
  double total = 0;
  for (double loss : losses) total += loss;
  return factor * total;
}

void finish(const float* sums, std::int64_t sums_stride, const Rows& rows, const Rows& partners,
            const Pairs& pairs, const float* weights, float factor, const Execution& run,
            const std::vector<void*>& gradients) {
  const std::int64_t dim = rows.dim;
  for_row_chunks(
      rows.count(), run.threads, [&](std::int64_t first, std::int64_t last, std::int64_t) {
        std::vector<float> x(dim), y(dim), g(dim);
        for (std::int64_t i = first; i < last; ++i) {
          unit_row(rows, i, x.data());
          std::copy_n(sums + i * sums_stride, dim, g.data());
          if (i < pairs.count) {
            const std::int64_t p = (i + pairs.shift) % pairs.count;
            const float weight = weights[i] + (pairs.mutual ? weights[p] : 0.0f);
            unit_row(partners, p, y.data());
            for (std::int64_t d = 0; d < dim; ++d) g[d] -= weight * y[d];
          }
          const float inverse = rows.inverse_norms[i];
          const bool clamped = inverse >= static_cast<float>(1 / kShortest);
          const float along =
              clamped ? 0.0f : static_cast<float>(run.isa->dot(g.data(), x.data(), dim));
          for (std::int64_t d = 0; d < dim; ++d) g[d] = factor * inverse * (g[d] - along * x[d]);
          const auto [block, offset] = locate(rows, i);
          narrow(g.data(), rows.dtype, dim, static_cast<char*>(gradients[block]) + offset);
        }
      });
}

}  // namespace mirror_rt::infonce
