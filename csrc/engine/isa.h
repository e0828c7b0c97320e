// The inner loops of the encoder, compiled once for each instruction set.
//
// Activations are rows of tokens, without padding; a row is padded with zeros to a multiple of
// kPanel numbers. A weight matrix [depth, columns] is packed once, by strips of as many columns as
// the registers of a processor hold sums of; a panel of kPanel columns is one strip or several:
//
//   packed [columns / strip][depth / u][strip][u]
//
// where a unit is u numbers along the summed index: 1 float32, 2 bfloat16 or 4 int8; or twice as
// many of the latter two, where an instruction multiplies two rows by two columns (NEON's i8mm).
// Every sum runs over the depth in order, whatever the rows beside it.
//
// Int8 activations are unsigned, or signed in NEON. The depth is cut into blocks: in each of them a
// token has a scale and a shift of its own, and a column of weights a scale, so that a few large
// numbers, which many models have, make only the numbers of their own block coarse. AVX2 and
// AVX-512 without VNNI add products in 16 bits, eight at a time: there the largest activation is
// kPairLevels, and the weights of a column are made smaller if the sum of some eight would not fit.
// Shorter blocks, of kPairBlock numbers, make up for the fewer levels.
#pragma once

#include <cstdint>

namespace mirror_rt::engine {

constexpr std::int64_t kPanel = 64;

constexpr std::int64_t kWidest = 65536;    // a size that cannot overflow when sizes are multiplied
constexpr std::int64_t kScaleBlock = 256;  // numbers that share a scale in int8
constexpr int kPairLevels = 127;
constexpr std::int64_t kPairBlock = 192;

// Of int8: the least normal number, whose inverse is finite.
constexpr float kLeastScale = 1.17549435e-38f;

static inline std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}
static inline std::int64_t blocks_of(std::int64_t n, std::int64_t size) {
  return (n + size - 1) / size;
}

enum class Precision { float32, bfloat16, int8 };
static inline std::int64_t bytes_of(Precision precision) {
  return precision == Precision::float32 ? 4 : precision == Precision::bfloat16 ? 2 : 1;
}
enum class Activation { none, gelu, gelu_tanh, silu, relu };

/// A packed weight matrix, the right operand of a product.
struct Matrix {
  std::int64_t panels;
  std::int64_t units;   // depth / u
  const void* packed;   // [panels][kPanel / strip][units][strip][u]
  const float* bias;    // [panels * kPanel]
  const float* scales;  // int8: of each column, [blocks of the depth][columns]
  const float* sums;    // int8: likewise, of the weights that these stand for
};

/// Rows of numbers in the precision of the products, their left operand.
struct Operand {
  void* values;
  std::int64_t stride;      // numbers from row to row, a multiple of kPanel
  float* scales = nullptr;  // int8: x = scales[row][block] * value + shifts[row][block]
  float* shifts = nullptr;
};

/// Where a product goes. `add` adds to what is there; `halves` stores bfloat16.
struct Result {
  void* values;
  std::int64_t stride;
  bool add = false;
  bool halves = false;
  Activation activation = Activation::none;
};

/// The weights of a normalisation; for `normalize` they are padded with zeros.
struct Norm {
  const float* weight;
  const float* bias;
  bool centred;  // whether the mean is taken off first, which root mean squares do not
};

/// One head of one text.
struct Head {
  void* query;  // first row; the rows of keys and values have the same stride
  void* key;
  const void* value;
  bool pairs;  // whether these are bfloat16, not float32, and are multiplied as pairs
  std::int64_t stride;
  std::int64_t tokens;
  std::int64_t attended;    // number of the first of them that are attended to
  std::int64_t size;        // numbers of a head
  float scale;              // of the scores
  std::int64_t back;        // how far before a query its first key is,
  std::int64_t ahead;       // and how far after it its last
  const float* query_norm;  // scales by which queries and keys are normalised; null for none
  const float* key_norm;
  float epsilon;                // of these norms
  bool laid_out;                // whether `scratch` has the keys and values of the head before
  const float* relative;        // bias of key j for query i at [j - i]; null for none
  const std::int32_t* buckets;  // of key j for query i at [j - i], in rising order; null for none
  const void* distances[2];     // of buckets: their products with queries, and keys, are added
  std::int64_t distance_stride;
  const float* rotary;  // cosines and sines of each position, [tokens][size]; null for none
  void* out;            // context, row by row
  std::int64_t out_stride;
  bool halves;  // whether `out` holds bfloat16
};

struct Isa {
  const char* name;
  std::int64_t strip;  // columns that are packed together
  std::int64_t unit;   // bytes of a unit of bfloat16 or int8
  bool pairs;          // whether products of bfloat16 are faster than those of float32
  int levels;          // the largest int8 activation
  std::int64_t block;  // number of int8 numbers of a token or a column that share a scale

  /// Computes rows [begin, end) of a w + bias for one panel of columns.
  void (*product)(Precision, const Operand& a, const Matrix& w, std::int64_t panel,
                  std::int64_t begin, std::int64_t end, const Result&);

  /// Gives back what a thread holds for products (tiles of AMX), once the last is computed.
  void (*rest)();

  /// Writes a normalised row of `n` numbers to `y`, which may be `x`, and to row `row` of `copy`.
  void (*normalize)(Precision, const float* x, float* y, std::int64_t n, const Norm&, float epsilon,
                    const Operand& copy, std::int64_t row);

  /// Writes `n` numbers to row `row` of an operand, in its precision. With a gate, `n` more follow,
  /// and the numbers become activation(x[i]) * x[n + i] before.
  void (*convert)(Precision, float* x, std::int64_t n, Activation gate, const Operand& copy,
                  std::int64_t row);

  /// Attends within one text; `scratch` has `attention_scratch` floats.
  void (*attend)(const Head&, float* scratch);
};

/// Returns the number of floats that `attend` needs for a text: keys, values, 16 rows of scores.
inline std::int64_t attention_scratch(std::int64_t tokens, std::int64_t size) {
  return round_up(tokens, kPanel) * (2 * round_up(size, kPanel) + 16);
}

/// The same for the products with `count` buckets behind them. Rows of a power of two would share
/// few lines of the cache, where a score takes the next number of each.
static inline std::int64_t distance_row(std::int64_t count) { return round_up(count, kPanel) + 16; }
inline std::int64_t distance_scratch(std::int64_t tokens, std::int64_t size, std::int64_t count) {
  return round_up(count, kPanel) * size + 2 * tokens * distance_row(count);
}

/// Returns the instruction set of that name if this processor has it, else null; the best for "".
const Isa* find_isa(const char* name);

extern const Isa* const kIsas[];  // the most capable last; ends with null

}  // namespace mirror_rt::engine
