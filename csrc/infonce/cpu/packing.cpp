#include "infonce/cpu/packing.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace mirror_rt::infonce {

PackedRows::PackedRows(const Rows& rows, const Geometry& geometry, const Execution& execution)
    : rows_(rows.count()), geometry_(geometry) {
  const Isa& isa = *execution.isa;
  by_dim_ = geometry.block * round_up(geometry.dim / isa.pair, isa.panel);
  transposed_ = geometry.block * geometry.dim / isa.pair;
  by_row_ = isa.pair == 1 ? 0 : transposed_;  // for floats, by_dim serves as by_row
  units_ = aligned<Unit>(blocks() * (by_dim_ + transposed_ + by_row_));

  const std::int64_t unit_size = geometry.block * geometry.dim;
  const Aligned<float> unit = aligned<float>(execution.threads * unit_size);
  parallel_for(blocks(), execution.threads, [&](std::int64_t index, int thread) {
    float* scratch = unit.get() + thread * unit_size;
    const PackedBlock packed = block(index);
    std::fill_n(scratch, unit_size, 0.0f);
    for (std::int64_t i = 0; i < packed.rows; ++i) {
      unit_row(rows, packed.first + i, scratch + i * geometry.dim);
    }
    isa.pack(geometry, scratch, const_cast<void*>(packed.by_dim),
             const_cast<void*>(packed.transposed), const_cast<void*>(packed.by_row));
  });
}

PackedBlock PackedRows::block(std::int64_t index) const {
  const Unit* by_dim = units_.get() + index * (by_dim_ + transposed_ + by_row_);
  const Unit* transposed = by_dim + by_dim_;
  const std::int64_t first = index * geometry_.block;
  return {by_dim, transposed, by_row_ == 0 ? by_dim : transposed + transposed_,
          std::min(geometry_.block, rows_ - first), first};
}

}  // namespace mirror_rt::infonce
