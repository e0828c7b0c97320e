// Binds the InfoNCE kernels to Python as mirror_train._cuda. Tensors are passed as addresses and
// the stream as its handle, so that one build serves every version of torch. Nothing here waits for
// the device.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/addresses.h"
#include "infonce/gpu/batch.h"
#include "infonce/gpu/loss.h"

namespace py = pybind11;
using namespace mirror_train;  // NOLINT: this file only binds this namespace

template <>
inline constexpr bool is_plain<MaxAndSum> = true;

namespace {

using BlockList = std::vector<std::pair<Address<void>, std::int64_t>>;  // (address, rows)

Blocks make_blocks(const BlockList& list, Dtype dtype) {
  if (list.size() > Blocks::kMax) {
    throw py::value_error("at most " + std::to_string(Blocks::kMax) + " blocks, got " +
                          std::to_string(list.size()));
  }
  Blocks blocks{{}, {}, dtype};
  for (std::size_t b = 0; b < list.size(); ++b) {
    blocks.data[b] = list[b].first;
    blocks.rows[b] = list[b].second;
  }
  return blocks;
}

void bind_types(py::module_& m) {
  py::enum_<Dtype>(m, "Dtype", py::module_local())
      .value("float32", Dtype::kFloat32)
      .value("float16", Dtype::kFloat16)
      .value("bfloat16", Dtype::kBFloat16);
  define_struct<Rows, std::uint16_t*, float*, std::int64_t, std::int64_t, std::int64_t, bool>(
      m, "Rows", "unit", "norms", "count", "dim", "stride", "split");
  define_struct<Negatives, std::int64_t, std::int64_t, std::int64_t, const std::int32_t*,
                const std::int32_t*>(m, "Negatives", "n_rows", "n_columns", "period", "row_ranks",
                                     "column_ranks");
  py::class_<WaveSize>(m, "WaveSize", py::module_local())
      .def(py::init([](const std::pair<int, int>& s) { return WaveSize{s.first, s.second}; }));
  py::implicitly_convertible<py::tuple, WaveSize>();
  define_struct<Pairs, std::int64_t, std::int64_t, bool>(m, "Pairs", "count", "shift", "mutual");
}

void normalize_blocks(const BlockList& blocks, Dtype dtype, const Rows& rows, void* stream) {
  normalize(make_blocks(blocks, dtype), rows, stream);
}

void finish_blocks(const float* sums, const Rows& rows, const Rows& partners, const Pairs& pairs,
                   const float* weights, double factor, const float* grad_output,
                   const BlockList& gradients, Dtype dtype, void* stream) {
  finish(sums, rows, partners, pairs, weights, factor, grad_output, make_blocks(gradients, dtype),
         stream);
}

/// Binds the passes with addresses alone, as two structures less to make are microseconds.
void bind_batch(py::module_& m) {
  using Void = Address<void>;
  using Ranks = Address<const std::int32_t>;
  using Floats = Address<float>;
  using Read = Address<const float>;
  py::class_<Batch>(m, "Batch", py::module_local())
      .def(py::init<std::int64_t, std::int64_t, std::int64_t, Dtype, bool, WaveSize, WaveSize>(),
           py::arg("n"), py::arg("n_hard"), py::arg("dim"), py::arg("dtype"), py::arg("one_way"),
           py::arg("logsumexp_wave"), py::arg("panel_wave"))
      .def_property_readonly("forward_bytes", &Batch::forward_bytes)
      .def_property_readonly("backward_bytes", &Batch::backward_bytes)
      .def(
          "forward",
          [](const Batch& batch, int device, Void z1, Void z2, Void hard, Ranks ranks, double scale,
             bool decoupled, Void workspace, Floats loss, Floats weights, Floats log_weights,
             Void stream) {
            batch.forward(device, {z1, z2, hard}, ranks, scale, decoupled, workspace, loss, weights,
                          log_weights, stream);
          },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "backward",
          [](const Batch& batch, int device, Void z1, Void z2, Void hard, Ranks ranks, double scale,
             Read weights, Read log_weights, Read grad_output, Void workspace, Void grad1,
             Void grad2, Void grad_hard, Void stream) {
            batch.backward(device, {z1, z2, hard}, ranks, scale, weights, log_weights, grad_output,
                           workspace, {grad1, grad2, grad_hard}, stream);
          },
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "InfoNCE on an NVIDIA GPU; see mirror_train.loss.cuda_kernel.";
  m.attr("TILE") = kTile;
  m.attr("ROWS_PER_BLOCK") = kRowsPerBlock;
  m.attr("COLUMN_PARTS") = kColumnParts;
  m.def("set_device", &set_device, py::arg("device"));
  m.def("sm90_obstacle", &sm90_obstacle);
  m.def("trust_core", &trust_core, py::arg("device"), py::arg("core"));
  bind_types(m);
  bind_batch(m);
  define(m, "normalize", &normalize_blocks, "blocks", "dtype", "rows", "stream");
  define(m, "logsumexp", &logsumexp, "rows", "columns", "negatives", "scale", "wave",
         "row_partials", "column_partials", "state", "n", "stream");
  define(m, "objective", &objective, "rows", "partners", "pairs", "n", "scale", "decoupled",
         "factor", "loss", "weights", "log_weights", "work", "stream");
  define(m, "contract", &contract, "rows", "columns", "negatives", "row_log_weights",
         "column_log_weights", "scale", "wave", "panel", "row_sums", "column_sums", "stream");
  define(m, "finish", &finish_blocks, "sums", "rows", "partners", "pairs", "weights", "factor",
         "grad_output", "gradients", "dtype", "stream");
}
