// Binds engine: validates, allocates and releases the GIL, but holds no algorithms.
#include "engine/engine.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "engine/vocabulary.h"
#include "isa_list.h"

namespace py = pybind11;

namespace {

using namespace mirror_rt::engine;
using Floats = py::array_t<float, py::array::c_style>;
using Pair = std::pair<Floats, Floats>;
using Ids = py::array_t<std::int64_t, py::array::c_style>;
using Buckets = py::array_t<std::int32_t, py::array::c_style>;

template <class T>
T one_of(const std::string& name, const char* what, std::vector<std::pair<const char*, T>> known) {
  for (const auto& [key, value] : known) {
    if (name == key) return value;
  }
  throw py::value_error("unknown " + std::string(what) + " '" + name + "'");
}

Precision precision_of(const std::string& name) {
  return one_of<Precision>(
      name, "precision",
      {{"fp32", Precision::float32}, {"bf16", Precision::bfloat16}, {"int8", Precision::int8}});
}

Activation activation_of(const std::string& name) {
  return one_of<Activation>(name, "activation",
                            {{"gelu", Activation::gelu},
                             {"gelu_tanh", Activation::gelu_tanh},
                             {"silu", Activation::silu},
                             {"relu", Activation::relu}});
}

const Isa& isa_of(const std::string& instruction_set) {
  const Isa* isa = find_isa(instruction_set.c_str());
  if (isa == nullptr) throw py::value_error("this processor has no " + instruction_set);
  return *isa;
}

const float* checked(const Floats& array, std::vector<std::int64_t> shape, const char* name) {
  const py::ssize_t* found = array.shape();
  const bool fits = std::equal(shape.begin(), shape.end(), found, found + array.ndim());
  if (!fits) throw py::value_error(std::string(name) + " has another shape than the encoder");
  return array.data();
}

Weight weight_of(const Pair& pair, std::int64_t depth, std::int64_t columns, const char* name) {
  return {checked(pair.first, {depth, columns}, name), checked(pair.second, {columns}, name), depth,
          columns};
}

Norm norm_of(const std::optional<Pair>& pair, const Config& c, std::int64_t n, const char* name) {
  if (!pair) return {};
  return {checked(pair->first, {n}, name), checked(pair->second, {n}, name), c.centred};
}

/// An encoder, and the arrays that it reads: word vectors, and cosines and sines.
class BoundEncoder {
 public:
  BoundEncoder(const Floats& words, std::unique_ptr<Encoder> encoder)
      : kept_{words}, encoder_(std::move(encoder)) {}

  static std::unique_ptr<BoundEncoder> make(
      const std::string& precision, std::int64_t heads, std::int64_t inner, float scale,
      float epsilon, const std::string& activation, const Floats& words, const Floats& positions,
      const Pair& norm, const std::optional<Floats>& types, const std::optional<Pair>& projection,
      const std::optional<Floats>& relative, std::int64_t skipped_id,
      const std::optional<Floats>& skipped, bool gated, bool pre_norm, std::int64_t key_heads,
      std::int64_t size, float word_scale, bool raw, bool centred, bool causal,
      const std::optional<Buckets>& buckets, const std::string& instruction_set) {
    if (words.ndim() != 2 || positions.ndim() != 2) {
      throw py::value_error("words and positions must have two dimensions");
    }
    Config c{};
    c.precision = precision_of(precision);
    c.activation = activation_of(activation);
    c.heads = heads, c.key_heads = key_heads, c.size = size, c.inner = inner;
    c.scale = scale, c.word_scale = word_scale, c.epsilon = epsilon;
    c.gated = gated, c.pre_norm = pre_norm, c.raw = raw, c.centred = centred, c.causal = causal;
    c.vocabulary = words.shape(0), c.embedded = words.shape(1), c.positions = positions.shape(0);
    c.hidden =
        projection && projection->first.ndim() == 2 ? projection->first.shape(1) : words.shape(1);
    c.skipped_id = skipped ? skipped_id : -1;
    c.types = types && types->ndim() == 2 ? types->shape(0) : 1;
    EmbeddingWeights e{};
    if (buckets) {
      const py::ssize_t count = buckets->ndim() == 1 ? buckets->shape(0) : 0;
      e.buckets = buckets->data();
      if (count != 2 * c.positions - 1 || *e.buckets < 0 || e.buckets[count - 1] >= kWidest ||
          !std::is_sorted(e.buckets, e.buckets + count)) {
        throw py::value_error("buckets must be those of 2 positions - 1 distances, in order");
      }
      c.buckets = e.buckets[count - 1] + 1;
    }
    check(c);
    e.words = words.data();
    if (positions.shape(1) != 0) {
      e.positions = checked(positions, {c.positions, c.embedded}, "positions");
    }
    e.norm = norm_of(norm, c, c.embedded, "norm");
    if (types) e.types = checked(*types, {c.types, c.embedded}, "types");
    if (skipped) e.skipped = checked(*skipped, {c.embedded}, "skipped");
    if (relative) e.relative = checked(*relative, {heads, 2 * c.positions - 1}, "relative");
    if (raw && projection) throw py::value_error("raw embeddings are not projected");
    if (projection) e.projection = weight_of(*projection, c.embedded, c.hidden, "projection");
    const Isa& isa = isa_of(instruction_set);
    return std::make_unique<BoundEncoder>(words, std::make_unique<Encoder>(c, isa, e));
  }

  void add_layer(const Pair& query_key_value, const Pair& attention_out, const Pair& attention_norm,
                 const Pair& inner, const Pair& out, const Pair& out_norm, std::int64_t window,
                 const std::optional<Floats>& rotary, const std::optional<Pair>& query_norm,
                 const std::optional<Pair>& key_norm, const std::optional<Pair>& attention_after,
                 const std::optional<Pair>& out_after, const std::optional<Floats>& distances) {
    const Config& c = encoder_->config();
    const std::int64_t h = c.hidden, i = c.inner;
    if (rotary && c.size % 2 != 0) throw py::value_error("rotary needs heads of even size");
    if (out_after && !c.pre_norm) throw py::value_error("out_after needs norms before layers");
    if (distances.has_value() != (c.buckets > 0)) throw py::value_error("distances need buckets");
    const LayerWeights weights{
        weight_of(query_key_value, h, c.queries() + 2 * c.keys(), "query_key_value"),
        weight_of(attention_out, c.queries(), h, "attention_out"),
        norm_of(attention_norm, c, h, "attention_norm"),
        weight_of(inner, h, c.gated ? 2 * i : i, "inner"),
        weight_of(out, i, h, "out"),
        norm_of(out_norm, c, h, "out_norm"),
        window > 0 ? std::min(window, c.positions) : c.positions,
        rotary ? checked(*rotary, {c.positions, c.size}, "rotary") : nullptr,
        norm_of(query_norm, c, c.size, "query_norm").weight,
        norm_of(key_norm, c, c.size, "key_norm").weight,
        norm_of(attention_after, c, h, "attention_after"),
        norm_of(out_after, c, h, "out_after"),
        distances ? checked(*distances, {c.buckets, 2 * c.queries()}, "distances") : nullptr};
    if (rotary) kept_.push_back(*rotary);
    py::gil_scoped_release release;
    encoder_->add_layer(weights);
  }

  void repeat_layer(std::int64_t layer) {
    if (layer < 0 || layer >= encoder_->layers()) {
      throw py::value_error("there is no layer " + std::to_string(layer));
    }
    encoder_->repeat_layer(layer);
  }

  Floats run(const Ids& input_ids, const Ids& mask, const std::string& pooling, bool normalize,
             int threads, int spins, const std::optional<Ids>& type_ids) const {
    const auto alike = [&](const Ids& other) {
      return other.ndim() == 2 && std::equal(other.shape(), other.shape() + 2, input_ids.shape());
    };
    if (input_ids.ndim() != 2 || !alike(mask) || (type_ids && !alike(*type_ids))) {
      throw py::value_error(
          "input_ids, attention_mask and types must have the same two dimensions");
    }
    if (threads < 1 || spins < 0) throw py::value_error("threads and spins must be positive");
    const auto pool = one_of<Pooling>(pooling, "pooling",
                                      {{"mean", Pooling::mean},
                                       {"mean-without-special", Pooling::inner},
                                       {"cls", Pooling::first},
                                       {"lasttoken", Pooling::last},
                                       {"max", Pooling::maximum},
                                       {"none", Pooling::none}});
    const Config& c = encoder_->config();
    std::vector<std::int32_t> ids, types;
    const std::vector<std::int64_t> offsets = unpad(input_ids, mask, c.vocabulary, "token id", ids);
    const std::vector<std::int64_t> attended = count_attended(mask, offsets);
    if (type_ids) unpad(*type_ids, mask, c.types, "token type", types);
    const py::ssize_t rows = pool == Pooling::none ? offsets.back() : input_ids.shape(0);
    Floats out({rows, py::ssize_t(c.hidden)});
    if (rows == 0) return out;
    float* data = out.mutable_data();
    const Texts texts{ids.data(), type_ids ? types.data() : nullptr, offsets.data(),
                      input_ids.shape(0), attended.data()};
    py::gil_scoped_release release;
    encoder_->run(texts, pool, threads, spins, data);
    if (normalize) normalize_rows(data, rows, c.hidden);
    return out;
  }

  std::int64_t hidden() const { return encoder_->config().hidden; }

 private:
  /// Takes the padding off rows that are padded on the right.
  std::vector<std::int64_t> unpad(const Ids& input_ids, const Ids& mask, std::int64_t limit,
                                  const char* what, std::vector<std::int32_t>& ids) const {
    const Config& c = encoder_->config();
    const py::ssize_t rows = input_ids.shape(0), length = input_ids.shape(1);
    std::vector<std::int64_t> offsets{0};
    for (py::ssize_t row = 0; row < rows; ++row) {
      const std::int64_t *id = input_ids.data() + row * length, *real = mask.data() + row * length;
      std::int64_t count = 0;
      for (; count < length && real[count] != 0; ++count) {
        if (id[count] < 0 || id[count] >= limit) {
          throw py::index_error(what + (" " + std::to_string(id[count])) + " is outside 0 .. " +
                                std::to_string(limit - 1));
        }
        ids.push_back(static_cast<std::int32_t>(id[count]));
      }
      if (count < 1 || count > c.positions) {
        throw py::index_error("a text of " + std::to_string(count) + " tokens: expected 1 .. " +
                              std::to_string(c.positions));
      }
      for (py::ssize_t k = count; k < length; ++k) {
        if (real[k] != 0) throw py::value_error("rows must be padded on the right");
      }
      offsets.push_back(offsets.back() + count);
    }
    return offsets;
  }

  /// Returns how many tokens of each row are attended to: those before the first marked with 2.
  std::vector<std::int64_t> count_attended(const Ids& mask,
                                           const std::vector<std::int64_t>& offsets) const {
    const std::int64_t window = encoder_->window();
    std::vector<std::int64_t> counts;
    for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
      const std::int64_t *marks = mask.data(static_cast<py::ssize_t>(row), 0),
                         length = offsets[row + 1] - offsets[row];
      const std::int64_t count = std::find(marks, marks + length, 2) - marks;
      if (std::find(marks + count, marks + length, 1) != marks + length) {
        throw py::value_error("tokens that none attends to must be the last");
      }
      if (count == 0 || length - count > window) {
        throw py::value_error("some tokens have none to attend to");
      }
      counts.push_back(count);
    }
    return counts;
  }

  std::vector<Floats> kept_;
  std::unique_ptr<Encoder> encoder_;
};

std::unique_ptr<VocabularyHead> make_head(const std::string& precision,
                                          const std::string& activation, float epsilon,
                                          const Pair& dense, const Pair& norm, const Pair& decoder,
                                          const std::string& instruction_set) {
  if (dense.first.ndim() != 2 || decoder.first.ndim() != 2) {
    throw py::value_error("dense and decoder must have two dimensions");
  }
  const std::int64_t hidden = dense.first.shape(0), embedded = dense.first.shape(1);
  const Weight in = weight_of(dense, hidden, embedded, "dense");
  const Weight out = weight_of(decoder, embedded, decoder.first.shape(1), "decoder");
  const Norm scales{checked(norm.first, {embedded}, "norm"),
                    checked(norm.second, {embedded}, "norm"), true};
  const Isa& isa = isa_of(instruction_set);
  py::gil_scoped_release release;
  return std::make_unique<VocabularyHead>(isa, precision_of(precision), activation_of(activation),
                                          epsilon, in, scales, out);
}

Floats weigh_words(const VocabularyHead& head, const Floats& tokens, const Ids& offsets,
                   const std::string& pooling, bool twice, int threads, int spins) {
  if (tokens.ndim() != 2 || tokens.shape(1) != head.hidden() || offsets.ndim() != 1) {
    throw py::value_error("tokens must be [n, " + std::to_string(head.hidden()) + "]");
  }
  const std::int64_t *first = offsets.data(), *end = first + offsets.shape(0);
  const auto empty = [](std::int64_t a, std::int64_t b) { return a >= b; };
  if (first == end || *first < 0 || end[-1] > tokens.shape(0) ||
      std::adjacent_find(first, end, empty) != end) {
    throw py::value_error("offsets must rise from 0 to the number of tokens at most");
  }
  if (threads < 1 || spins < 0) throw py::value_error("threads and spins must be positive");
  const Weighing weighing{
      one_of<bool>(pooling, "pooling of words", {{"max", false}, {"sum", true}}), twice};
  const std::int64_t count = end - first - 1;
  Floats out({py::ssize_t(count), py::ssize_t(head.words())});
  float* data = out.mutable_data();
  py::gil_scoped_release release;
  if (count > 0) head.run(tokens.data(), first, count, weighing, threads, spins, data);
  return out;
}

}  // namespace

void bind_engine(py::module_& m) {
  m.def(
      "engine_instruction_sets", [] { return mirror_rt::supported_names(kIsas); },
      "Instruction sets of NativeEncoder that this processor has, the most capable last.");
  py::class_<BoundEncoder>(m, "NativeEncoder", py::module_local(),
                           "A transformer that encodes texts.")
      .def(py::init(&BoundEncoder::make), py::kw_only(), py::arg("precision"), py::arg("heads"),
           py::arg("inner"), py::arg("scale"), py::arg("epsilon"), py::arg("activation"),
           py::arg("words"), py::arg("positions"), py::arg("norm"), py::arg("types") = py::none(),
           py::arg("projection") = py::none(), py::arg("relative") = py::none(),
           py::arg("skipped_id") = -1, py::arg("skipped") = py::none(), py::arg("gated") = false,
           py::arg("pre_norm") = false, py::arg("key_heads"), py::arg("size"),
           py::arg("word_scale") = 1.0f, py::arg("raw") = false, py::arg("centred") = true,
           py::arg("causal") = false, py::arg("buckets") = py::none(),
           py::arg("instruction_set") = "")
      .def("add_layer", &BoundEncoder::add_layer, py::kw_only(), py::arg("query_key_value"),
           py::arg("attention_out"), py::arg("attention_norm"), py::arg("inner"), py::arg("out"),
           py::arg("out_norm"), py::arg("window") = 0, py::arg("rotary") = py::none(),
           py::arg("query_norm") = py::none(), py::arg("key_norm") = py::none(),
           py::arg("attention_after") = py::none(), py::arg("out_after") = py::none(),
           py::arg("distances") = py::none(),
           "Pack the weights of one more layer, which are not kept.")
      .def("repeat_layer", &BoundEncoder::repeat_layer, py::arg("layer"),
           "Add a layer that shares the weights of an earlier one.")
      .def("run", &BoundEncoder::run, py::arg("input_ids"), py::arg("attention_mask"),
           py::kw_only(), py::arg("pooling"), py::arg("normalize"), py::arg("threads"),
           py::arg("spins"), py::arg("types") = py::none(),
           "Encode rows that are padded on the right: float32 [rows, H], or [tokens, H]. 2 in the "
           "mask marks last tokens that attend to those marked 1, and to which none attends.")
      .def_property_readonly("hidden", &BoundEncoder::hidden);
  py::class_<VocabularyHead>(m, "NativeVocabulary", py::module_local(),
                             "The head of a masked language model, pooled over tokens.")
      .def(py::init(&make_head), py::kw_only(), py::arg("precision"), py::arg("activation"),
           py::arg("epsilon"), py::arg("dense"), py::arg("norm"), py::arg("decoder"),
           py::arg("instruction_set") = "")
      .def("run", &weigh_words, py::arg("tokens"), py::arg("offsets"), py::kw_only(),
           py::arg("pooling"), py::arg("twice"), py::arg("threads"), py::arg("spins"),
           "Weigh the words of each text: float32 [texts, words].");
}
