// Runs the head of a masked language model: a panel of words at a time, for all tokens.
#include "engine/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "parallel.h"

namespace mirror_rt::engine {
namespace {

constexpr std::int64_t kBlockRows = 128;  // tokens whose logits are held at a time, by a thread
constexpr int kPhases = 4;

/// Returns the weight of a logit, 0 for one that is not positive; NaN stays.
float weight_of(float x, bool twice) {
  if (x <= 0) return 0.0f;
  return twice ? std::log1p(std::log1p(x)) : std::log1p(x);
}

/// Pools rows of logits into the `columns` numbers of a text at `out`.
void pool(const float* logits, std::int64_t rows, std::int64_t columns, Weighing weighing,
          float* out) {
  for (const float* x = logits; x < logits + rows * kPanel; x += kPanel) {
    for (std::int64_t c = 0; c < columns; ++c) {
      if (weighing.sum) {
        out[c] += weight_of(x[c], weighing.twice);
      } else {
        out[c] = x[c] > out[c] || x[c] != x[c] ? x[c] : out[c];  // a NaN is larger than all
      }
    }
  }
}

}  // namespace

VocabularyHead::VocabularyHead(const Isa& isa, Precision precision, Activation activation,
                               float epsilon, const Weight& dense, const Norm& norm,
                               const Weight& decoder)
    : isa_(isa),
      precision_(precision),
      activation_(activation),
      epsilon_(epsilon),
      hidden_(dense.depth),
      embedded_(dense.columns),
      words_(decoder.columns) {
  const bool narrow = std::max(hidden_, embedded_) <= kWidest && decoder.depth == embedded_;
  if (!narrow || std::min({hidden_, embedded_, words_}) < 1 ||
      words_ > std::numeric_limits<std::int32_t>::max() || !(epsilon >= 0) || std::isinf(epsilon)) {
    throw std::invalid_argument("the sizes of the head do not go together, or are too large");
  }
  dense_ = PackedMatrix(isa, precision, dense, weights_);
  decoder_ = PackedMatrix(isa, precision, decoder, weights_);
  norm_weight_ = copy_rows(norm.weight, 1, embedded_, round_up(embedded_, kPanel));
  norm_bias_ = copy_rows(norm.bias, 1, embedded_, round_up(embedded_, kPanel));
}

/// The vectors of the tokens of some texts on their way through the head.
struct VocabularyHead::Run {
  const float* tokens;  // of the first text
  const std::int64_t* offsets;
  std::int64_t count, rows;  // of texts, and of their tokens
  Weighing weighing;
  float* out;
  Rows given, inner;  // inputs of the head, and of its last matrix
  Operand a, b;       // the same in the precision of the products

  std::int64_t end(std::int64_t text) const { return offsets[text + 1] - offsets[0]; }
};

/// Computes all but the product with the words.
void VocabularyHead::encode(Phases::Member& member, const Run& run) const {
  const Matrix& dense = dense_.get();
  const Norm norm{norm_weight_.get(), norm_bias_.get(), true};
  const std::int64_t blocks = (run.rows + kBlockRows - 1) / kBlockRows;
  member.run(run.rows, [&](std::int64_t row) {
    float* x = run.given.at(row);
    std::copy_n(run.tokens + row * hidden_, hidden_, x);
    isa_.convert(precision_, x, hidden_, Activation::none, run.a, row);
  });
  member.run(blocks * dense.panels, [&](std::int64_t task) {
    const std::int64_t begin = task / dense.panels * kBlockRows;
    isa_.product(precision_, run.a, dense, task % dense.panels, begin,
                 std::min(run.rows, begin + kBlockRows),
                 {run.inner.values, run.inner.stride, false, false, activation_});
  });
  member.run(run.rows, [&](std::int64_t row) {
    float* x = run.inner.at(row);
    isa_.normalize(precision_, x, x, embedded_, norm, epsilon_, run.b, row);
  });
}

/// Pools the logits of a panel of words, which a product writes to `block` block by block.
void VocabularyHead::pool_panel(const Run& run, std::int64_t panel, float* block) const {
  const Weighing weighing = run.weighing;
  const std::int64_t column = panel * kPanel, columns = std::min(kPanel, words_ - column);
  const float lowest = weighing.sum ? 0.0f : -std::numeric_limits<float>::infinity();
  for (std::int64_t text = 0; text < run.count; ++text) {
    std::fill_n(run.out + text * words_ + column, columns, lowest);
  }
  std::int64_t text = 0;
  for (std::int64_t begin = 0; begin < run.rows; begin += kBlockRows) {
    const std::int64_t end = std::min(run.rows, begin + kBlockRows);
    isa_.product(precision_, run.b, decoder_.get(), panel, begin, end, {block, kPanel});
    for (std::int64_t row = begin; row < end;) {
      while (run.end(text) <= row) ++text;
      const std::int64_t last = std::min(end, run.end(text));
      pool(block + row * kPanel + column, last - row, columns, weighing,
           run.out + text * words_ + column);
      row = last;
    }
  }
  for (text = 0; !weighing.sum && text < run.count; ++text) {
    float* x = run.out + text * words_ + column;
    for (std::int64_t c = 0; c < columns; ++c) x[c] = weight_of(x[c], weighing.twice);
  }
}

void VocabularyHead::run(const float* tokens, const std::int64_t* offsets, std::int64_t count,
                         Weighing weighing, int threads, int spins, float* out) const {
  const std::int64_t rows = offsets[count] - offsets[0];
  const std::int64_t wide = round_up(hidden_, kPanel), narrow = round_up(embedded_, kPanel);
  Buffer<float> given(rows * wide), inner(rows * narrow);
  OperandBuffer copies[2];
  const auto operand = [&](OperandBuffer& copy, const Rows& of) {
    if (precision_ == Precision::float32) return Operand{of.values, of.stride};
    return copy.reserve(precision_, rows, of.stride);
  };
  Run run{tokens + offsets[0] * hidden_, offsets, count, rows, weighing, out, {}, {}, {}, {}};
  run.given = {given.get(), wide}, run.inner = {inner.get(), narrow};
  run.a = operand(copies[0], run.given), run.b = operand(copies[1], run.inner);
  // A product writes to row * kPanel + column, so a block begins at its column.
  const std::int64_t block = rows * kPanel + round_up(words_, kPanel);
  Buffer<float> blocks(threads * block);
  Phases phases(kPhases, spins);
  on_threads(threads, [&](int thread) {
    Phases::Member member(phases, thread);
    encode(member, run);
    member.run(decoder_.get().panels,
               [&](std::int64_t panel) { pool_panel(run, panel, blocks.get() + thread * block); });
    isa_.rest();
  });
}

}  // namespace mirror_rt::engine
