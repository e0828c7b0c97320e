// The InfoNCE steps against the definition in float64, without Python: for sanitizers and for
// other processors. Prints the largest relative error and returns 1 if it is too large.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "aligned.h"
#include "infonce/infonce.h"
#include "isa_list.h"

using namespace mirror_rt::infonce;

namespace {

constexpr float kScale = 10;

std::vector<float> random_rows(std::int64_t rows, std::int64_t dim) {
  static std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> out(rows * dim);
  for (float& x : out) x = normal(generator);
  return out;
}

struct Case {
  std::int64_t pairs, dim;
  Execution run;
};

double cosine(const std::vector<float>& z, std::int64_t dim, std::int64_t i, std::int64_t j) {
  double dot = 0, a = 0, b = 0;
  for (std::int64_t d = 0; d < dim; ++d) {
    const double x = z[i * dim + d], y = z[j * dim + d];
    dot += x * y, a += x * x, b += y * y;
  }
  return dot / std::sqrt(a * b);
}

/// Largest error of n_i and of the weighted sums, relative to the largest value.
double error_of(const Case& c) {
  const std::int64_t m = 2 * c.pairs, width = padded_dim(*c.run.isa, c.dim);
  const std::vector<float> z = random_rows(m, c.dim);
  std::vector<float> norms(m), n(m), a(m);
  const auto sums = mirror_rt::aligned<float>(padded_rows(*c.run.isa, m) * width);
  const Rows rows{{{z.data(), m}}, c.dim, Dtype::float32, norms.data()};
  const Negatives negatives{m, m, c.pairs, nullptr, nullptr};
  inverse_norms(rows, c.run, norms.data());
  logsumexp(rows, nullptr, negatives, kScale, c.run, n.data());
  for (std::int64_t i = 0; i < m; ++i) a[i] = -n[i];
  contract(rows, nullptr, negatives, a.data(), a.data(), kScale, nullptr, c.run, sums.get(),
           nullptr);
  double worst = 0;
  for (std::int64_t i = 0; i < m; i += 7) {
    double total = 0, first = 0;
    for (std::int64_t j = 0; j < m; ++j) {
      if ((i - j) % c.pairs == 0) continue;
      const double s = kScale * cosine(z, c.dim, i, j);
      total += std::exp(s);
      first += (std::exp(s + a[i]) + std::exp(s + a[j])) * z[j * c.dim] * norms[j];
    }
    worst = std::fmax(worst, std::fabs(std::log(total) - n[i]));
    worst = std::fmax(worst, std::fabs(first - sums[i * width]));
  }
  return worst;
}

}  // namespace

int main() {
  bool good = true;
  for (const Isa* const* isa = kIsas; *isa != nullptr; ++isa) {
    if (!mirror_rt::processor_has((*isa)->name)) continue;
    for (const Case& c : {Case{150, 33, {*isa, 1}}, Case{401, 64, {*isa, 4}}}) {
      const double error = error_of(c);
      std::printf("%s: %lld pairs, %d threads: error %.1e\n", (*isa)->name,
                  static_cast<long long>(c.pairs), c.run.threads, error);
      good = good && error < ((*isa)->pair == 2 ? 2e-1 : 2e-5);
    }
  }
  return good ? 0 : 1;
}
