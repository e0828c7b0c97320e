// Binds the InfoNCE kernels to Python as mirror_train._cuda. Tensors are passed as addresses and
// the stream as its handle, so that one build serves every version of torch. Nothing here waits for
// the device.
#include <pybind11/pybind11.h>

#include <cstdint>

#include "bindings/addresses.h"
#include "infonce/gpu/batch.h"
#include "infonce/gpu/loss.h"
#include "infonce/gpu/taught.h"

namespace py = pybind11;
using namespace mirror_train;  // NOLINT: this file only binds this namespace

namespace {

/// Binds the passes with addresses alone, as structures to make would take microseconds.
void bind_batch(py::module_& m) {
  using Void = Address<void>;
  using Ranks = Address<const std::int32_t>;
  using Floats = Address<float>;
  using Read = Address<const float>;
  const auto make = [](std::int64_t n, std::int64_t n_hard, std::int64_t all_n,
                       std::int64_t all_hard, std::int64_t dim, Dtype dtype, bool one_way,
                       int panel_tiles, int logsumexp_tiles) {
    return Batch({n, n_hard}, {all_n, all_hard}, dim, dtype, one_way, panel_tiles, logsumexp_tiles);
  };
  py::class_<Batch>(m, "Batch", py::module_local())
      .def(py::init(make), py::arg("n"), py::arg("n_hard"), py::arg("all_n"), py::arg("all_hard"),
           py::arg("dim"), py::arg("dtype"), py::arg("one_way"), py::arg("panel_tiles"),
           py::arg("logsumexp_tiles"))
      .def_property_readonly("losses", &Batch::losses)
      .def_property_readonly("forward_bytes", &Batch::forward_bytes)
      .def_property_readonly("backward_bytes", &Batch::backward_bytes)
      .def(
          "forward",
          [](const Batch& batch, int device, Void z1, Void z2, Void hard, Void all1, Void all2,
             Void all_hard, Ranks row_ranks, Ranks column_ranks, double scale, bool decoupled,
             Void workspace, Floats loss, Floats weights, Floats log_weights, Void stream) {
            const BatchInputs in{
                {z1, z2, hard}, {all1, all2, all_hard}, row_ranks, column_ranks, scale};
            batch.forward(device, in, decoupled, workspace, loss, weights, log_weights, stream);
          },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "backward",
          [](const Batch& batch, int device, Void z1, Void z2, Void hard, Void all1, Void all2,
             Void all_hard, Ranks row_ranks, Ranks column_ranks, double scale, Read weights,
             Read log_weights, Read all_log_weights, Read grad_output, Void workspace, Void grad1,
             Void grad2, Void grad_hard, Void stream) {
            const BatchInputs in{
                {z1, z2, hard}, {all1, all2, all_hard}, row_ranks, column_ranks, scale};
            batch.backward(device, in, weights, log_weights, all_log_weights, grad_output,
                           workspace, {grad1, grad2, grad_hard}, stream);
          },
          py::call_guard<py::gil_scoped_release>());
}

/// Binds the passes of a batch that follows a teacher.
void bind_taught_batch(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  define_struct<TaughtInputs, void*, void*, void*, const std::int32_t*, double, double>(
      m, "TaughtInputs", "z1", "z2", "teacher", "ranks", "scale", "teacher_scale");
  py::class_<TaughtBatch>(m, "TaughtBatch", py::module_local())
      .def(py::init<std::int64_t, bool, std::int64_t, std::int64_t, Dtype, int, int>(),
           py::arg("n"), py::arg("two_views"), py::arg("dim"), py::arg("teacher_dim"),
           py::arg("dtype"), py::arg("panel_tiles"), py::arg("logsumexp_tiles"))
      .def_property_readonly("rows", &TaughtBatch::rows)
      .def_property_readonly("bytes", &TaughtBatch::bytes)
      .def_property_readonly("finish_bytes", &TaughtBatch::finish_bytes)
      .def_property_readonly("sums", &TaughtBatch::sums)
      .def_property_readonly("totals", &TaughtBatch::totals)
      .def("begin", passing(&TaughtBatch::begin), Release())
      .def("contract", passing(&TaughtBatch::contract), Release())
      .def("finish", passing(&TaughtBatch::finish), Release());
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "InfoNCE on an NVIDIA GPU; see mirror_train.loss.cuda_kernel.";
  py::enum_<Dtype>(m, "Dtype", py::module_local())
      .value("float32", Dtype::kFloat32)
      .value("float16", Dtype::kFloat16)
      .value("bfloat16", Dtype::kBFloat16);
  m.def("tma_obstacle", &tma_obstacle, py::arg("device"));
  m.def("trust_tma", &trust_tma, py::arg("device"));
  bind_batch(m);
  bind_taught_batch(m);
}
