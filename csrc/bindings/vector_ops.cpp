// Binds vector_ops: validates, allocates and releases the GIL, but holds no algorithms.
#include "vector_ops/vector_ops.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "isa_list.h"

namespace py = pybind11;

namespace {

using namespace mirror_rt::vector_ops;
template <class T>
using Array = py::array_t<T, py::array::c_style>;

std::uint8_t flip_of(bool is_signed) { return is_signed ? 0x80 : 0; }

const Isa& isa_named(const std::optional<std::string>& name) {
  const Isa* found = find_isa(name ? name->c_str() : nullptr);
  if (found == nullptr) throw py::value_error("this processor has no " + *name);
  return *found;
}

template <class T>
void check_matrix(const Array<T>& array, const char* name) {
  if (array.ndim() != 2) throw py::value_error(std::string(name) + " must have two dimensions");
}

// -> uint8 [n, D]
Array<std::uint8_t> quantize_rows(const Array<float>& x, const Array<float>& starts,
                                  const Array<float>& steps, bool is_signed,
                                  const std::optional<std::string>& isa) {
  check_matrix(x, "embeddings");
  const py::ssize_t n = x.shape(0), dim = x.shape(1);
  if (starts.ndim() != 1 || steps.ndim() != 1 || starts.size() != dim || steps.size() != dim) {
    throw py::value_error("starts and steps must have one entry a dimension");
  }
  const Isa& chosen = isa_named(isa);
  Array<std::uint8_t> out(std::vector<py::ssize_t>{n, dim});
  const float *data = x.data(), *start = starts.data(), *step = steps.data();
  std::uint8_t* codes = out.mutable_data();
  std::int64_t bad;
  {
    py::gil_scoped_release release;
    bad = quantize(chosen, data, n, dim, start, step, flip_of(is_signed), codes);
  }
  if (bad >= 0) throw py::value_error("row " + std::to_string(bad) + " holds NaN");
  return out;
}

std::vector<std::int64_t> non_finite_rows_of(const Array<float>& x) {
  check_matrix(x, "vectors");
  return non_finite_rows(x.data(), x.shape(0), x.shape(1));
}

/// Searches by `run`. -> (scores int32, indices int64), each [parts, queries, k], unsorted
template <class Query>
py::tuple search(Search<Query>* run, const Array<Query>& queries, const Array<std::uint8_t>& corpus,
                 bool is_signed, std::int64_t k, std::int64_t parts,
                 const std::optional<std::string>& isa) {
  check_matrix(queries, "queries");
  check_matrix(corpus, "corpus");
  if (queries.shape(1) != corpus.shape(1)) {
    throw py::value_error("queries and corpus must have rows of one length");
  }
  if (k < 1 || parts < 1) throw py::value_error("k and parts must be at least 1");
  const Corpus rows{corpus.data(), corpus.shape(0), corpus.shape(1), parts, flip_of(is_signed)};
  const Isa& chosen = isa_named(isa);
  const Query* query = queries.data();
  const std::int64_t n_queries = queries.shape(0);
  const std::vector<py::ssize_t> shape = {parts, n_queries, k};
  Array<std::int32_t> scores(shape);
  Array<std::int64_t> indices(shape);
  std::int32_t* score = scores.mutable_data();
  std::int64_t* index = indices.mutable_data();
  std::fill_n(score, scores.size(), std::numeric_limits<std::int32_t>::min());
  std::fill_n(index, indices.size(), std::int64_t{-1});
  {
    py::gil_scoped_release release;
    run(chosen, rows, query, n_queries, k, score, index);
  }
  return py::make_tuple(scores, indices);
}

// -> float32 [queries, rows]
Array<float> half_products_of(const Array<float>& queries, const Array<std::uint16_t>& rows,
                              std::int64_t parts, const std::optional<std::string>& isa) {
  check_matrix(queries, "queries");
  check_matrix(rows, "rows");
  if (queries.shape(1) != rows.shape(1)) {
    throw py::value_error("queries and rows must have one length");
  }
  if (parts < 1) throw py::value_error("parts must be at least 1");
  const Isa& chosen = isa_named(isa);
  const py::ssize_t n_queries = queries.shape(0), n = rows.shape(0), dim = rows.shape(1);
  Array<float> scores(std::vector<py::ssize_t>{n_queries, n});
  const float* query = queries.data();
  const std::uint16_t* row = rows.data();
  float* score = scores.mutable_data();
  py::gil_scoped_release release;
  half_products(chosen, query, n_queries, row, n, dim, parts, score);
  return scores;
}

/// The arrays of some texts, which must outlive it.
template <class T>
struct Texts {
  Texts(const std::vector<Array<T>>& arrays, py::ssize_t dim, const char* name) {
    for (const Array<T>& array : arrays) {
      check_matrix(array, name);
      if (array.shape(1) != dim) throw py::value_error("tokens must have one length");
      rows.push_back(array.data());
      lengths.push_back(array.shape(0));
    }
    vectors = {rows.data(), lengths.data(), static_cast<std::int64_t>(rows.size()), dim};
  }
  std::vector<const T*> rows;
  std::vector<std::int64_t> lengths;
  TokenVectors<T> vectors;
};

// -> float32 [queries, documents]
template <class T>
Array<float> max_similarities_of(const std::vector<Array<float>>& queries,
                                 const std::vector<Array<T>>& documents, std::int64_t threads,
                                 const std::optional<std::string>& isa) {
  if (threads < 1) throw py::value_error("threads must be at least 1");
  const py::ssize_t dim = queries.empty() || queries[0].ndim() != 2 ? 0 : queries[0].shape(1);
  const Texts<float> asked(queries, dim, "queries");
  const Texts<T> given(documents, dim, "documents");
  const Isa& chosen = isa_named(isa);
  Array<float> scores(
      std::vector<py::ssize_t>{py::ssize_t(asked.rows.size()), py::ssize_t(given.rows.size())});
  float* score = scores.mutable_data();
  py::gil_scoped_release release;
  max_similarities(chosen, asked.vectors, given.vectors, threads, score);
  return scores;
}

template <class T>
void bind_max_similarities(py::module_& m) {
  m.def("max_similarities", &max_similarities_of<T>, py::arg("queries"),
        py::arg("documents").noconvert(), py::kw_only(), py::arg("threads"),
        py::arg("instruction_set") = py::none(),
        "Sums over query tokens of the largest product with a document's: float32 [q, n] of lists "
        "of float32 [t, D] and of float32, float16 as uint16, int8 or uint8 [t, D].");
}

// -> float32 [queries, documents]
Array<float> residual_similarities_of(const std::vector<Array<float>>& queries,
                                      const std::vector<Array<std::uint8_t>>& documents,
                                      const Array<float>& centroids, const Array<float>& weights,
                                      std::int64_t threads, const std::optional<std::string>& isa) {
  if (threads < 1) throw py::value_error("threads must be at least 1");
  check_matrix(centroids, "centroids");
  check_matrix(weights, "weights");
  const py::ssize_t dim = centroids.shape(1), per_byte = weights.shape(1);
  if (weights.shape(0) != 256 || (per_byte != 2 && per_byte != 4 && per_byte != 8) ||
      dim % per_byte != 0) {
    throw py::value_error("weights must be [256, 2, 4 or 8], which divides the dimension");
  }
  const Texts<float> asked(queries, dim, "queries");
  const Texts<std::uint8_t> given(documents, 4 + dim / per_byte, "documents");
  for (const Array<std::uint8_t>& document : documents) {
    for (py::ssize_t token = 0; token < document.shape(0); ++token) {
      std::uint32_t centroid;
      std::memcpy(&centroid, document.data(token, 0), sizeof centroid);
      if (centroid >= centroids.shape(0)) throw py::value_error("there is no such centroid");
    }
  }
  const Isa& chosen = isa_named(isa);
  const ResidualCodec codec{centroids.data(), weights.data(), per_byte};
  Array<float> scores(
      std::vector<py::ssize_t>{py::ssize_t(queries.size()), py::ssize_t(documents.size())});
  float* score = scores.mutable_data();
  py::gil_scoped_release release;
  max_similarities(chosen, asked.vectors, given.vectors, codec, threads, score);
  return scores;
}

// Updates the heaps best_scores and best_indices [queries, k] with scores [queries, rows].
void keep_best_rows(const Array<float>& scores, std::int64_t first, Array<float>& best_scores,
                    Array<std::int64_t>& best_indices, const std::optional<std::string>& isa) {
  check_matrix(scores, "scores");
  check_matrix(best_scores, "best_scores");
  check_matrix(best_indices, "best_indices");
  const std::int64_t queries = scores.shape(0), n = scores.shape(1), k = best_scores.shape(1);
  if (best_scores.shape(0) != queries || best_indices.shape(0) != queries || k < 1 ||
      best_indices.shape(1) != k) {
    throw py::value_error("best_scores and best_indices must be [queries, k]");
  }
  const Isa& chosen = isa_named(isa);
  const float* row = scores.data();
  const Best<float> best{best_scores.mutable_data(), best_indices.mutable_data(), k};
  py::gil_scoped_release release;
  for (std::int64_t q = 0; q < queries; ++q) {
    keep_best(chosen, row + q * n, n, first,
              Best<float>{best.scores + q * k, best.indices + q * k, k});
  }
}

}  // namespace

void bind_vector_ops(py::module_& m) {
  const auto isa = py::arg("instruction_set") = py::none();
  m.def(
      "vector_instruction_sets", [] { return mirror_rt::supported_names(kIsas); },
      "Instruction sets of the functions below that this processor has, the most capable last.");
  m.def("non_finite_rows", &non_finite_rows_of, py::arg("vectors"),
        "Numbers of the rows of float32 [n, D] that hold NaN or infinity.");
  m.def("quantize_rows", &quantize_rows, py::arg("embeddings"), py::arg("starts"), py::arg("steps"),
        py::kw_only(), py::arg("signed"), isa,
        "Codes uint8 [n, D] of float32 [n, D]; signed: the bytes of an int8 array.");
  m.def(
      "search_codes",
      [](const Array<std::int16_t>& queries, const Array<std::uint8_t>& corpus, bool is_signed,
         std::int64_t k, std::int64_t parts, const std::optional<std::string>& isa) {
        return search(&search_codes, queries, corpus, is_signed, k, parts, isa);
      },
      py::arg("queries"), py::arg("corpus"), py::kw_only(), py::arg("signed"), py::arg("k"),
      py::arg("parts"), isa,
      "Largest dot products of int16 queries and byte codes: (scores, indices), unsorted.");
  m.def(
      "search_bits",
      [](const Array<std::uint8_t>& queries, const Array<std::uint8_t>& corpus, std::int64_t k,
         std::int64_t parts, const std::optional<std::string>& isa) {
        return search(&search_bits, queries, corpus, false, k, parts, isa);
      },
      py::arg("queries"), py::arg("corpus"), py::kw_only(), py::arg("k"), py::arg("parts"), isa,
      "Rows of fewest different bits: (- their number, indices), unsorted.");
  m.def("half_products", &half_products_of, py::arg("queries"), py::arg("rows"), py::kw_only(),
        py::arg("parts"), isa,
        "Dot products float32 [q, n] of float32 [q, D] and float16 [n, D] as uint16.");
  bind_max_similarities<float>(m);
  bind_max_similarities<std::uint16_t>(m);
  bind_max_similarities<std::uint8_t>(m);
  bind_max_similarities<std::int8_t>(m);
  m.def("residual_similarities", &residual_similarities_of, py::arg("queries"),
        py::arg("documents"), py::arg("centroids"), py::arg("weights"), py::kw_only(),
        py::arg("threads"), isa,
        "Scores float32 [q, n] as of max_similarities, of documents uint8 [t, 4 + bytes]: the "
        "number of a centroid, and residuals, whose weights are float32 [256, numbers in a byte].");
  m.def("keep_best", &keep_best_rows, py::arg("scores"), py::arg("first"),
        py::arg("best_scores").noconvert(), py::arg("best_indices").noconvert(), py::kw_only(), isa,
        "Update heaps [queries, k] with the scores [queries, rows] of rows first, first + 1.");
}
