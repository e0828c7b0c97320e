// InfoNCE on an NVIDIA GPU: the host interface. All pointers, also those in structs, lead to device
// memory, and `stream` is the handle of a CUDA stream. Nothing here allocates, waits for the
// device, or depends on Python.
//
// The five steps are those that mirror_train.loss.kernel describes, with the symbols used here;
// Batch (infonce/gpu/batch.h) makes passes of them.
#pragma once

#include <cstdint>
#include <string>

namespace mirror_train {

/// The number of rows and of columns of a tile; all buffers are padded to a multiple of it.
constexpr int kTile = 128;

/// The most partial results that a core has of the columns of a tile: one for each 64 rows.
constexpr int kColumnParts = 2;

/// Returns how many tiles hold `count` rows or columns.
inline int tiles_of(std::int64_t count) { return static_cast<int>((count + kTile - 1) / kTile); }

/// Returns how many dimensions a block of the tma core sums up at once. The wider, the less is read
/// of shared memory and the L2 cache for a product.
constexpr int width_of_sums(std::int64_t stride, bool split) {
  if (split || (stride % 256 != 0 && stride % 192 != 0)) return 128;
  return stride % 256 == 0 ? 256 : 192;
}

enum class Dtype { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

/// Up to three row-major matrices [rows[b], dim] of one dtype, whose rows follow one another.
struct Blocks {
  static constexpr int kMax = 3;
  void* data[kMax];
  std::int64_t rows[kMax];
  Dtype dtype;
};

/// Unit rows in fp16, each element times 2^15: [count rounded up to kTile, parts * stride], zero
/// outside [count, dim]. With `split` a row holds its high parts and then its low parts; the sum of
/// both has the precision of fp32.
struct Rows {
  std::uint16_t* unit;
  float* norms;  ///< [count], the divisor of each row
  std::int64_t count, dim;
  std::int64_t stride;  ///< dim rounded up to kTile
  bool split;

  int tiles() const { return tiles_of(count); }
};

/// Which columns are negatives of which rows: the first n_rows rows and n_columns columns belong to
/// a string; those after them are hard negatives. A column is a negative of a row unless both
/// belong to one string or group. Without ranks, row or column i belongs to string i % period.
struct Negatives {
  std::int64_t n_rows, n_columns, period;
  const std::int32_t* row_ranks;     ///< [n_rows], not negative and equal where ids are; or null
  const std::int32_t* column_ranks;  ///< [n_columns], null exactly when row_ranks is
};

/// The positive of row i < count is row (i + shift) % count of the partners.
struct Pairs {
  std::int64_t count, shift;
  bool mutual;
};

/// The maximum of some scores, and the sum of exp(score - max).
struct alignas(8) MaxAndSum {
  float max, sum;
};

/// The largest number of tiles computed at once; the caller sizes the workspaces by it.
struct WaveSize {
  int row_tiles, column_tiles;
};

/// The number of rows that a block of the O(rows * dim) kernels processes.
constexpr int kRowsPerBlock = 8;

/// Makes a device current for this thread. The CUDA runtime is linked into the extension, so it
/// does not see which device the caller's copy of the runtime has chosen.
void set_device(int device);

/// Returns why a device, which becomes current, cannot take the tma core; empty if it can.
std::string tma_obstacle(int device);

/// Makes the tma core the default on `device`, where it has proved to agree with the mma core. The
/// environment variable MIRROR_RT_CUDA_CORE overrides the default.
void trust_tma(int device);

/// Normalizes the rows of `blocks` into `rows`.
void normalize(const Blocks& blocks, const Rows& rows, void* stream);

/// Writes n [negatives.n_rows]. The problem is symmetric if rows and columns are the same buffer.
/// Works in row_partials [column_tiles, row_tiles * kTile], in a symmetric problem column_partials
/// [kColumnParts * row_tiles, column_tiles * kTile], and state [n_rows].
void logsumexp(const Rows& rows, const Rows& columns, const Negatives& negatives, double scale,
               WaveSize wave, MaxAndSum* row_partials, MaxAndSum* column_partials, MaxAndSum* state,
               float* n, void* stream);

/// Writes the scalar loss, and weights and log_weights [count]. Works in `work` [count /
/// kRowsPerBlock rounded up].
void objective(const Rows& rows, const Rows& partners, const Pairs& pairs, const float* n,
               double scale, bool decoupled, double factor, float* loss, float* weights,
               float* log_weights, double* work, void* stream);

/// The most warps that work on a tile, of which each has a total of its own.
constexpr int kTotals = 8;

/// The fixed vectors of a teacher, one for each row and as many parts, and their log weights
/// [n_rows]. The sum of `totals` [row tiles, column tiles, kTotals], 0 before, becomes that over i
/// and j of exp(t_ij + a_i) (t_ij - s_ij), where t_ij are the teacher's scores.
struct Teacher {
  Rows rows;
  const float* log_weights;
  double scale;
  double* totals;
};

/// Writes row_sums [rows rounded up to kTile, stride] and, unless it is null, column_sums of the
/// corresponding shape. Null log weights stand for -inf. Works in `panel` [rows.split ? 2 : 1,
/// row_tiles * kTile, column_tiles * kTile]. In a symmetric problem W is less by that of a
/// `teacher`, unless it is null.
void contract(const Rows& rows, const Rows& columns, const Negatives& negatives,
              const float* row_log_weights, const float* column_log_weights, double scale,
              WaveSize wave, std::uint16_t* panel, float* row_sums, float* column_sums,
              const Teacher* teacher, void* stream);

/// Writes the gradients of the blocks that `rows` was made from. `grad_output` is read on the
/// device.
void finish(const float* sums, const Rows& rows, const Rows& partners, const Pairs& pairs,
            const float* weights, double factor, const float* grad_output, const Blocks& gradients,
            void* stream);

}  // namespace mirror_train
