// Binds csrc/ to Python as mirror_rt._core: validates, allocates and releases the GIL, but holds no
// algorithms.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/bindings.h"
#include "json_cuts.h"
#include "tokens/batching.h"
#include "tokens/lookup.h"
#include "tokens/padding.h"

namespace py = pybind11;

namespace {

using IdArray = py::array_t<std::int32_t, py::array::c_style>;
using IndexArray = py::array_t<std::int64_t, py::array::c_style>;
using FloatArray = py::array_t<float, py::array::c_style>;

constexpr py::ssize_t kSmallBatch = 4096;  // tokens

std::int32_t checked_id(PyObject* value, py::ssize_t sequence) {
  // Accept only true ints: __index__ of another object could run code that changes the list.
  if (!PyLong_Check(value)) {
    throw py::type_error("a token id in sequence " + std::to_string(sequence) +
                         " must be int, not " + Py_TYPE(value)->tp_name);
  }
  int overflow = 0;
  const long id = PyLong_AsLongAndOverflow(value, &overflow);
  if (overflow != 0) {
    throw py::value_error("a token id in sequence " + std::to_string(sequence) +
                          " is outside 0 .. 2^31 - 1");
  }
  if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
    throw py::value_error("token id " + std::to_string(id) + " in sequence " +
                          std::to_string(sequence) + " is outside 0 .. 2^31 - 1");
  }
  return static_cast<std::int32_t>(id);
}

// list[list[int]] -> (ids int32 [T], offsets int64 [n + 1])
py::tuple flatten(const py::list& sequences) {
  const py::ssize_t n = py::ssize_t(sequences.size());
  IndexArray offsets(n + 1);
  std::int64_t* offset = offsets.mutable_data();
  offset[0] = 0;
  for (py::ssize_t i = 0; i < n; ++i) {
    PyObject* sequence = PyList_GET_ITEM(sequences.ptr(), i);
    if (!PyList_Check(sequence)) {
      throw py::type_error("sequence " + std::to_string(i) + " must be a list of int, not " +
                           Py_TYPE(sequence)->tp_name);
    }
    offset[i + 1] = offset[i] + PyList_GET_SIZE(sequence);
  }
  IdArray ids(offset[n]);
  std::int32_t* out = ids.mutable_data();
  for (py::ssize_t i = 0; i < n; ++i) {
    PyObject* sequence = PyList_GET_ITEM(sequences.ptr(), i);
    const py::ssize_t count = PyList_GET_SIZE(sequence);
    if (count != offset[i + 1] - offset[i]) throw py::value_error("a sequence changed its length");
    for (py::ssize_t k = 0; k < count; ++k) *out++ = checked_id(PyList_GET_ITEM(sequence, k), i);
  }
  return py::make_tuple(ids, offsets);
}

void check_offsets(const IdArray& ids, const IndexArray& offsets) {
  if (ids.ndim() != 1 || offsets.ndim() != 1 || offsets.size() < 1) {
    throw py::value_error("ids and offsets must be one-dimensional, offsets with n + 1 entries");
  }
  const std::int64_t* o = offsets.data();
  bool ordered = o[0] == 0 && o[offsets.size() - 1] == ids.size();
  for (py::ssize_t i = 1; ordered && i < offsets.size(); ++i) ordered = o[i - 1] <= o[i];
  if (!ordered) throw py::value_error("offsets must rise from 0 to len(ids)");
}

std::int64_t longest_row(const IndexArray& offsets, const IndexArray& rows) {
  const std::int64_t n = offsets.size() - 1;
  const std::int64_t* o = offsets.data();
  std::int64_t longest = 0;
  for (py::ssize_t r = 0; r < rows.size(); ++r) {
    const std::int64_t row = rows.data()[r];
    if (row < 0 || row >= n) {
      throw py::index_error("row " + std::to_string(row) + " is outside 0 .. " +
                            std::to_string(n - 1));
    }
    longest = std::max(longest, o[row + 1] - o[row]);
  }
  return longest;
}

// -> (input_ids, attention_mask, token_type_ids), each int64 [len(rows), length]
py::tuple pad_rows(const IdArray& ids, const IndexArray& offsets, const IndexArray& rows,
                   std::int64_t pad_id, std::int64_t length) {
  check_offsets(ids, offsets);
  if (rows.ndim() != 1) throw py::value_error("rows must be one-dimensional");
  const std::int64_t longest = longest_row(offsets, rows);
  if (length < 0) length = longest;
  if (length < longest) {
    throw py::value_error("length " + std::to_string(length) +
                          " is shorter than the longest row, " + std::to_string(longest));
  }
  const std::vector<py::ssize_t> shape = {rows.size(), py::ssize_t(length)};
  IndexArray input_ids(shape), attention_mask(shape), token_type_ids(shape);
  const mirror_rt::Ragged tokens{ids.data(), offsets.data()};
  const mirror_rt::PaddedBatch out{input_ids.mutable_data(), attention_mask.mutable_data(),
                                   token_type_ids.mutable_data()};
  const std::int64_t* row_indices = rows.data();
  const std::int64_t n_rows = rows.size();
  {
    // Releasing and reacquiring the GIL costs more than padding a small batch.
    std::optional<py::gil_scoped_release> release;
    if (input_ids.size() > kSmallBatch) release.emplace();
    mirror_rt::pad_rows(tokens, row_indices, n_rows, length, pad_id, out);
  }
  return py::make_tuple(input_ids, attention_mask, token_type_ids);
}

// -> ends int64 [batches]
IndexArray plan_ends(const IndexArray& lengths, std::int64_t token_budget, std::int64_t run_cost) {
  if (lengths.ndim() != 1) throw py::value_error("lengths must be one-dimensional");
  const std::int64_t* data = lengths.data();
  const std::int64_t n = lengths.size();
  constexpr std::int64_t kMost = std::int64_t{1}
                                 << 40;  // limits lengths and costs: no sum overflows
  if (run_cost < 0 || run_cost > kMost || !std::is_sorted(data, data + n) ||
      (n > 0 && (data[0] < 0 || data[n - 1] > kMost / n))) {
    throw py::value_error("lengths must rise from 0 and be no more than a batch can hold");
  }
  std::vector<std::int64_t> ends;
  {
    py::gil_scoped_release release;
    ends = mirror_rt::plan_batches(data, n, token_budget, run_cost);
  }
  IndexArray out(py::ssize_t(ends.size()));
  std::copy(ends.begin(), ends.end(), out.mutable_data());
  return out;
}

// -> float32 [n, D]
FloatArray mean_rows(const FloatArray& table, const IdArray& ids, const IndexArray& offsets,
                     const std::optional<IdArray>& row_of, const std::optional<FloatArray>& weights,
                     bool normalize) {
  check_offsets(ids, offsets);
  if (table.ndim() != 2) throw py::value_error("the table must have two dimensions");
  const py::ssize_t n_ids = row_of ? row_of->size() : weights ? weights->size() : table.shape(0);
  if ((row_of && row_of->ndim() != 1) ||
      (weights && (weights->ndim() != 1 || weights->size() != n_ids))) {
    throw py::value_error("row_of and weights must have one entry a token id");
  }
  const mirror_rt::Table rows{table.data(),
                              table.shape(0),
                              table.shape(1),
                              row_of ? row_of->data() : nullptr,
                              weights ? weights->data() : nullptr,
                              n_ids};
  const mirror_rt::Ragged tokens{ids.data(), offsets.data()};
  const py::ssize_t n = offsets.size() - 1;
  FloatArray out(std::vector<py::ssize_t>{n, table.shape(1)});
  float* written = out.mutable_data();
  std::int64_t bad;
  {
    std::optional<py::gil_scoped_release> release;
    if (ids.size() > kSmallBatch) release.emplace();
    bad = mirror_rt::mean_rows(rows, tokens, n, normalize, written);
  }
  if (bad >= 0) {
    throw py::index_error("the table has no row for token id " + std::to_string(tokens.ids[bad]));
  }
  return out;
}

// -> (start, stop, [(position, in_text)])
py::tuple find_large_json_value(const py::bytes& document, std::int64_t size) {
  if (size < 1) throw py::value_error("size must be at least 1, not " + std::to_string(size));
  const auto text = static_cast<std::string_view>(document);
  mirror_rt::LargeJsonValue found;
  {
    py::gil_scoped_release release;
    found = mirror_rt::find_large_json_value(text, size);
  }
  py::list cuts;
  for (const auto& cut : found.cuts) cuts.append(py::make_tuple(cut.position, cut.in_text));
  return py::make_tuple(found.start, found.stop, cuts);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Native hot loops of mirror_rt.";
  m.def("flatten", &flatten, py::arg("sequences"),
        "Concatenate lists of token ids: (ids int32 [T], offsets int64 [n + 1]).");
  m.def("mean_rows", &mean_rows, py::arg("table"), py::arg("ids"), py::arg("offsets"),
        py::kw_only(), py::arg("row_of") = py::none(), py::arg("weights") = py::none(),
        py::arg("normalize"),
        "Means float32 [n, D] of the table's rows, float32 [rows, D], of each sequence of ids.");
  m.def("pad_rows", &pad_rows, py::arg("ids"), py::arg("offsets"), py::arg("rows"), py::kw_only(),
        py::arg("pad_id"), py::arg("length") = -1,
        "Right-pad chosen sequences: (input_ids, attention_mask, token_type_ids), "
        "each int64 [len(rows), length]; length -1 means the longest chosen row.");
  m.def("plan_batches", &plan_ends, py::arg("lengths"), py::kw_only(), py::arg("token_budget"),
        py::arg("run_cost"),
        "Ends, int64 [batches], of the cheapest batches of rows of rising lengths, int64 [n].");
  m.def("find_large_json_value", &find_large_json_value, py::arg("document"), py::arg("size"),
        "Start and stop of the first list or text of at least `size` bytes, and where it can be "
        "cut: (position, whether in a text).");
#ifndef MIRROR_RT_PLAIN_VECTORS
  bind_engine(m);
#endif
  bind_infonce(m);
  bind_vector_ops(m);
  bind_words(m);
}
